"""What exists in one stage of a task only: `[stages.setup]`, `[stages.agent]`, `[stages.verify]`.

A stage is a property of the sandbox made for it, so nothing has to be taken away between two: setup's
sandbox becomes a layer and is gone, the agent's is destroyed before the verifier's is made. Paths are
relative to the workdir, or absolute.
"""

from __future__ import annotations

import re

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec.layers import parse_layer_name
from skerry.spec.limits import LAYERS_MAX, check_duration
from skerry.spec.network import check_network
from skerry.spec.paths import check_covers

COMMANDS_MAX = 100
COMMAND_BYTES_MAX = 64 * 1024
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}|[0-9]{1,5}")


class Setup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Made once for the task, by root: what its commands leave is in agent's and verifier's sandbox."""

    commands: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()  # gone afterwards
    timeout_s: float = 1800.0  # of each command


class AgentStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The sandbox in which the policy acts."""

    user: str = "root"  # of its commands and files
    network: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()  # above the task's
    readonly: tuple[str, ...] = ()  # for root too
    hidden: tuple[str, ...] = ()  # empty in there, for root too


class VerifyStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The verifying sandbox: never with a network. Who runs the tests is `tests.user`."""

    layers: tuple[str, ...] = ()
    readonly: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


class Stages(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The stages of a task."""

    setup: Setup = Setup()
    agent: AgentStage = AgentStage()
    verify: VerifyStage = VerifyStage()

    def check(self, workdir: str) -> None:
        """Raises InvalidRequest naming what is out of bounds."""
        if len(self.setup.commands) > COMMANDS_MAX:
            raise InvalidRequest(f"stages.setup.commands: at most {COMMANDS_MAX}")
        for command in self.setup.commands:
            if not command.strip() or "\x00" in command or len(command) > COMMAND_BYTES_MAX:
                raise InvalidRequest("stages.setup.commands: one is empty or too long")
        if not self.setup.commands and (self.setup.network or self.setup.layers):
            raise InvalidRequest("stages.setup has a network or layers, and no commands")
        check_duration(self.setup.timeout_s, "stages.setup.timeout_s")
        if _USER.fullmatch(self.agent.user) is None:
            raise InvalidRequest(f"stages.agent.user {self.agent.user[:80]!r} is no user")
        for stage in (self.setup, self.agent):
            check_network(stage.network)
        for name, layers in (
            ("setup", self.setup.layers),
            ("agent", self.agent.layers),
            ("verify", self.verify.layers),
        ):
            if len(layers) > LAYERS_MAX:
                raise InvalidRequest(f"stages.{name}.layers: at most {LAYERS_MAX}")
            for layer in layers:
                parse_layer_name(layer)
        for name, seen in (("agent", self.agent), ("verify", self.verify)):
            try:
                check_covers(absolute(seen.readonly, workdir), absolute(seen.hidden, workdir))
            except InvalidRequest as error:
                raise InvalidRequest(f"stages.{name}.{error.message}") from error


def absolute(paths: tuple[str, ...], workdir: str) -> tuple[str, ...]:
    """Returns the paths as they are in a sandbox."""
    return tuple(path if path.startswith("/") else f"{workdir}/{path}" for path in paths)
