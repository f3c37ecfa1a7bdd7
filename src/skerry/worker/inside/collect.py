"""The test process: runs pytest on code that must not be trusted (uploaded; unprivileged user).

Started with -I -B. pytest and its parts are imported, and their functions noted, before anything of
the code under test can run; import roots come after the standard library. Sends one message over
its channel at the end: outcomes by test id, and every sign that the results were made up.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

_exit, _write, _close = os._exit, os.write, os.close
_dumps = json.dumps
GUARDED = ("_pytest", "pytest", "pluggy", "unittest")
OWN_PATCHES = ("_pytest.config.Config._getini_unknown_type",)  # pytest's legacypath replaces it
FORGED_MAX = 20


def import_machinery() -> None:
    """Imports all of pytest, so that no part of it is first imported by the code under test."""
    import unittest.mock

    import _pytest
    import pytest

    del pytest, unittest
    for found in pkgutil.walk_packages(_pytest.__path__, "_pytest."):
        try:
            importlib.import_module(found.name)
        except ImportError:
            continue  # parts for libraries that are not here


def functions_of(value: Any) -> Iterator[types.FunctionType]:
    """Yields the Python functions behind one attribute."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if isinstance(value, property):
        for part in (value.fget, value.fset):
            yield from functions_of(part)
    elif isinstance(value, types.FunctionType):
        yield value


class Fingerprint:
    """Notes every function of the test machinery, and tells which are no longer what they were."""

    def __init__(self) -> None:
        self._known: list[tuple[str, dict[str, Any] | type, str, Any, tuple[Any, ...]]] = []
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] in GUARDED:
                self._note_module(name, module)

    def _note_module(self, name: str, module: types.ModuleType) -> None:
        for key, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType) and value.__module__ == name:
                self._note(f"{name}.{key}", vars(module), key, value)
            elif isinstance(value, type) and value.__module__ == name:
                self._known.append((f"{name}.{key}", vars(module), key, value, ()))
                for part, inner in list(vars(value).items()):
                    if any(True for _ in functions_of(inner)):
                        self._note(f"{name}.{key}.{part}", value, part, inner)

    def _note(self, label: str, owner: dict[str, Any] | type, key: str, value: Any) -> None:
        if label in OWN_PATCHES:
            return
        parts = tuple(
            (function, function.__code__, function.__defaults__, function.__kwdefaults__)
            for function in functions_of(value)
        )
        self._known.append((label, owner, key, value, parts))

    def changed(self) -> str:
        """Returns the first name that is not what it was, or an empty text."""
        for label, owner, key, value, parts in self._known:
            now = owner.get(key) if isinstance(owner, dict) else vars(owner).get(key)
            if now is not value:
                return label
            for function, code, defaults, keywords in parts:
                if (
                    function.__code__ is not code
                    or function.__defaults__ is not defaults
                    or function.__kwdefaults__ is not keywords
                ):
                    return label
        return ""


def probes() -> Iterator[tuple[Any, Any]]:
    """Yields pairs of different values that nobody could have known: nothing equals both."""
    draw = random.SystemRandom()
    yield f"{draw.getrandbits(64):x}", f"{draw.getrandbits(64):x}-"
    yield draw.getrandbits(63), -draw.getrandbits(63) - 1
    yield draw.random() + 2, draw.random() + 4
    yield draw.randbytes(9), draw.randbytes(10)
    yield [draw.getrandbits(60)], [draw.getrandbits(60), 0]
    yield {draw.getrandbits(60): 0}, {draw.getrandbits(60): 0, "": 1}
    yield object(), object()


def instance_of(kind: Any) -> Any:
    """Returns an object of the class: a new one, else one that is there; raises ValueError."""
    try:
        return kind.__new__(kind)
    except Exception:  # noqa: BLE001 - whatever it wants
        for found in gc.get_objects():
            if type(found) is kind:
                return found
        raise ValueError("none") from None


_namespace = type.__dict__["__dict__"].__get__
_qualname = type.__dict__["__qualname__"].__get__


def equals_everything(own: Callable[[str], bool]) -> str:
    """Returns the name of a class of the code under test whose objects equal whatever is asked.

    `own` says of the file of a function whether it belongs to that code.
    """
    # Not by what they say of themselves: some only say that they are classes, and some classes do
    # not show what is in them.
    for kind in [found for found in gc.get_objects() if issubclass(type(found), type)]:
        method = _namespace(kind).get("__eq__")
        if not callable(method) or isinstance(method, types.WrapperDescriptorType):
            continue
        if isinstance(method, types.FunctionType) and not own(method.__code__.co_filename):
            continue
        try:
            one = instance_of(kind)
        except ValueError:
            continue
        for first, second in probes():
            with contextlib.suppress(Exception):
                if bool(one == first) and bool(one == second):
                    return str(_qualname(kind))
    return ""


class Collector:
    """The plugin that notes outcomes. Its state is in closures of `hooks`, not on the plugin."""

    def __init__(self, config: dict[str, Any], fingerprint: Fingerprint | None) -> None:
        self.outcomes: dict[str, str] = {}
        self.forged: list[str] = []
        self.status = 70
        self._watched = frozenset(config["watched"])
        self._extra = {os.path.basename(path) for path in config["extra"]}
        self._fingerprint = fingerprint
        self._broken: set[str] = set()
        self._raised: set[tuple[str, str]] = set()
        self._workdir = config["workdir"] + "/"
        self._tests = tuple(self._workdir + path for path in config["test_paths"])

    def suspect(self, text: str) -> None:
        """Notes a sign of forgery."""
        if len(self.forged) < FORGED_MAX and text not in self.forged:
            self.forged.append(text)

    def check(self) -> None:
        """Notes it if the test machinery was changed."""
        changed = self._fingerprint.changed() if self._fingerprint else ""
        if changed:
            self.suspect(f"{changed} was replaced while the tests ran")

    def check_equality(self) -> None:
        """Notes it if the code under test has objects that equal whatever a test expects."""
        if self._fingerprint is None:
            return
        liar = equals_everything(self._is_own)
        if liar:
            self.suspect(f"an object of {liar[:200]} equals everything")

    def _is_own(self, filename: str) -> bool:
        path = os.path.abspath(filename) if filename[:1] not in {"", "<"} else ""
        if path:
            tests = any(path == test or path.startswith(test + "/") for test in self._tests)
            return path.startswith(self._workdir) and not tests
        return not filename.startswith("<frozen")  # made from text, by whomever

    def order(self, items: list[Any]) -> None:
        """Spreads the extra tests: some first, some last."""
        extra = [item for item in items if item.path.name in self._extra]
        others = [item for item in items if item.path.name not in self._extra]
        cut = random.SystemRandom().randint(0, len(extra))
        items[:] = extra[:cut] + others + extra[cut:]

    def note(self, report: Any) -> None:
        """Takes over one phase's report of one test."""
        name = report.nodeid
        if report.failed:
            self._broken.add(name)
            self.outcomes[name] = "failed" if report.when == "call" else "error"
        elif name in self._broken:
            return
        elif report.skipped:
            self.outcomes[name] = "xfailed" if hasattr(report, "wasxfail") else "skipped"
        elif (name, report.when) in self._raised:
            self.suspect("an exception is reported as a pass")
        elif report.when == "call":
            self.outcomes[name] = "xpassed" if hasattr(report, "wasxfail") else "passed"

    def compare(self, item: Any, call: Any, report: Any) -> None:
        """Notes a report that hides an exception, here or on its way from here to `note`."""
        if self._fingerprint is None:
            return
        if item.nodeid in self._watched:
            self.check()
            self.check_plugins(item.config.pluginmanager.get_plugins())
        if call.excinfo is not None:
            self._raised.add((item.nodeid, call.when))
            if report.passed and not hasattr(report, "wasxfail"):
                self.suspect("an exception is reported as a pass")

    def check_plugins(self, plugins: Any) -> None:
        """Notes it if the code under test made itself a part of pytest."""
        for plugin in plugins:
            if isinstance(plugin, types.ModuleType):
                module = plugin
            else:
                module = sys.modules.get(type(plugin).__module__, types)
            path = os.path.abspath(getattr(module, "__file__", None) or "/")
            own = any(path == test or path.startswith(test + "/") for test in self._tests)
            if path.startswith(self._workdir) and not own:
                self.suspect(f"{path} registered itself as a plugin of pytest")


def plugin_of(collector: Collector) -> Any:
    """Returns the pytest plugin around a collector."""
    import pytest

    class Plugin:
        """Hooks, and nothing else."""

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            """Orders the tests."""
            collector.order(items)

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            """Compares each report with what happened."""
            report = yield
            collector.compare(item, call, report)
            return report

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_logreport(self, report: Any) -> None:
            """Notes each report."""
            collector.note(report)

        @pytest.hookimpl(tryfirst=True)
        def pytest_collectreport(self, report: Any) -> None:
            """Notes what could not be collected."""
            if report.failed:
                collector.outcomes[report.nodeid or "collection"] = "error"

    return Plugin()


def search_path(workdir: str, roots: list[str]) -> None:
    """Puts the import roots behind the standard library and before installed packages."""
    found = [os.path.normpath(os.path.join(workdir, root)) for root in roots]
    at = next(
        (
            n
            for n, entry in enumerate(sys.path)
            if entry.endswith(("dist-packages", "site-packages"))
        ),
        len(sys.path),
    )
    sys.path[at:at] = found


def uncovered(arguments: list[str], paths: list[str]) -> list[str]:
    """Returns the paths beneath none of the arguments: naming one twice would drop the rest."""
    folders = [one.rstrip("/") + "/" for one in arguments if os.path.isdir(one)]
    return [path for path in paths if not path.startswith(tuple(folders))]


def main() -> None:
    """Runs the tests and reports."""
    config = json.loads(sys.stdin.buffer.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    import_machinery()
    import pytest

    fingerprint = Fingerprint() if config["guard"] else None
    collector = Collector(config, fingerprint)
    search_path(config["workdir"], config["import_roots"])
    arguments = [*config["args"], "-p", "no:cacheprovider", "-o", "addopts="]
    arguments += [f"--rootdir={config['workdir']}", "--color=no", "--tb=short", "--show-capture=no"]
    for name in config["plugins"]:
        arguments += ["-p", name]
    arguments += uncovered(arguments, [os.path.relpath(path) for path in config["extra"]])
    status = int(pytest.main(arguments, plugins=[plugin_of(collector)]))
    collector.check()
    collector.check_equality()
    message = {"outcomes": collector.outcomes, "forged": collector.forged, "status": status}
    data = config["token"].encode() + b" " + _dumps(message).encode() + b"\n"
    while data:
        data = data[_write(config["channel"], data) :]
    sys.stdout.flush()
    _exit(status)


if __name__ == "__main__":
    main()
