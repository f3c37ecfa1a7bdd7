"""Compose files: what of a service a sandbox can be, and a plain refusal of the rest.

A sandbox runs no program of its own, shares nothing with the host and reaches no other sandbox. What
a service says about its own first process has no meaning then; what it asks of the host or of the
network, and what could not be enforced, is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from skerry.compat.inspect.errors import TaskRefused

# Of the first process of a service: there is none in a sandbox.
_OF_NO_PROCESS = frozenset(
    {"init", "stdin_open", "tty", "restart", "stop_grace_period", "pull_policy", "expose"}
)
_SAME = {"image": "image", "working_dir": "workdir", "user": "user", "hostname": "hostname"}
# Commands that only keep a container up.
_WAITS = re.compile(
    r"(/bin/|/usr/bin/)?(sleep (infinity|inf|\d+[smhd]?)|tail -f /dev/null|cat|true|(ba)?sh)"
)
_EXTENSION = "x-skerry"


def sandboxes_of(compose: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the options of each service by its name; raises TaskRefused for what no sandbox can be."""
    for name in ("volumes", "networks"):
        if compose.get(name):
            raise TaskRefused(
                f"{name}: sandboxes share no {name}, neither with the host nor each other"
            )
    return {
        name: _Service(name, service).options() for name, service in compose["services"].items()
    }


class _Service:
    def __init__(self, name: str, service: Mapping[str, Any]) -> None:
        self._name = name
        self._left = dict(service)
        self._made: dict[str, Any] = {}

    def options(self) -> dict[str, Any]:
        self._no_variables(self._left)
        own = self._left.pop(_EXTENSION, {})
        if not isinstance(own, dict):
            raise self._refused(_EXTENSION, "options of Skerry by name")
        for key in [key for key in self._left if key in _OF_NO_PROCESS or key.startswith("x-")]:
            if key != "x-default":
                del self._left[key]
        for theirs, ours in _SAME.items():
            if theirs in self._left:
                self._made[ours] = self._left.pop(theirs)
        self._build()
        self._environment()
        self._limits()
        self._network(own)
        self._process()
        if not {"image", "build"} & (self._made.keys() | own.keys()):
            raise self._refused("image", "a service has an image, or a build")
        if self._left.pop("x-default", False):
            self._made["default"] = True
        if self._left:
            raise self._refused(
                min(self._left), "a sandbox has nothing of the kind, or it could not be enforced"
            )
        return self._made | own

    def _refused(self, key: str, why: str) -> TaskRefused:
        return TaskRefused(f"services.{self._name}.{key}: {why}")

    def _no_variables(self, value: object) -> None:
        if isinstance(value, str) and "${" in value:
            raise self._refused("", f"variables are not replaced: {value[:80]}")
        if isinstance(value, dict):
            for one in value.values():
                self._no_variables(one)
        if isinstance(value, list):
            for one in value:
                self._no_variables(one)

    def _build(self) -> None:
        build = self._left.pop("build", None)
        if build is None:
            return
        # With both, compose builds, and gives the result that name.
        self._made.pop("image", None)
        asked = {"context": build} if isinstance(build, str) else dict(build)
        asked.pop("pull", None)  # images come by import, not by pull
        if asked.pop("no_cache", False):
            raise self._refused("build.no_cache", "remove the layer instead: skerry image rm")
        if extra := sorted(asked.keys() - {"context", "dockerfile"}):
            raise self._refused(f"build.{extra[0]}", "only context and dockerfile")
        self._made["build"] = asked

    def _environment(self) -> None:
        given = self._left.pop("environment", None)
        if given is None:
            return
        pairs = given.items() if isinstance(given, dict) else [_pair(one) for one in given]
        env = {}
        for key, value in pairs:
            if value is None:
                raise self._refused(
                    "environment", f"{key} has no value, and the host's is not taken"
                )
            env[key] = str(value)
        self._made["env"] = env

    def _limits(self) -> None:
        deploy = self._left.pop("deploy", None) or {}
        resources = deploy.pop("resources", None) or {}
        if deploy:
            raise self._refused(f"deploy.{min(deploy)}", "only resources.limits")
        limits = resources.pop("limits", None) or {}
        if resources:
            raise self._refused(
                f"deploy.resources.{min(resources)}", "nothing is reserved for a sandbox"
            )
        cpus = self._left.pop("cpus", limits.get("cpus"))
        if cpus is not None:
            self._made["cpu"] = float(cpus)
        memory = self._left.pop("mem_limit", limits.get("memory"))
        if memory is not None:
            # Compose's units are powers of 1024, whatever they are called.
            self._made["memory"] = re.sub(r"(?<=[kmg])b$", "", str(memory).lower())
        pids = self._left.pop("pids_limit", None)
        if pids is not None and int(pids) > 0:
            self._made["pids"] = int(pids)

    def _network(self, own: Mapping[str, Any]) -> None:
        mode = self._left.pop("network_mode", None)
        if self._left.get("networks"):
            raise self._refused("networks", "sandboxes do not reach each other")
        self._left.pop("networks", None)
        if mode == "none":
            self._made["network"] = ()
        elif "network" not in own:
            raise self._refused(
                "network_mode",
                "a service of compose reaches the whole Internet, a sandbox what is named: write "
                "network_mode: none, or x-skerry with a list named network (pypi, example.org)",
            )

    def _process(self) -> None:
        for key in ("command", "entrypoint"):
            given = self._left.pop(key, None)
            if given is None:
                continue
            line = given if isinstance(given, str) else " ".join(given)
            if not _WAITS.fullmatch(line.strip()):
                raise self._refused(
                    key, "a sandbox runs what it is asked for; start this in the sample's setup"
                )
        depends = self._left.pop("depends_on", None)
        if isinstance(depends, dict) and any(
            (how or {}).get("condition", "service_started") != "service_started"
            for how in depends.values()
        ):
            raise self._refused("depends_on", "a sandbox has no health and no end to wait for")


def _pair(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return name, value if equals else None
