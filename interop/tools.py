"""What there is to run: each folder of tools/ with a tool.toml is one harness."""

from __future__ import annotations

from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "interop" / "tools"


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table: a file of tests, run by pytest in the tool's environment."""

    name: str
    tests: str  # below the tool's folder
    fast: bool = False  # CI runs it on every change
    local: bool = False  # run again on the tool's own local backend, to compare the seconds
    timeout_s: int = 600


class Explained(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A test that fails for a reason which is not ours. One that passes after all is an error too."""

    test: str  # its name in the report
    reason: str


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One harness."""

    title: str
    package: str  # its distribution on PyPI, whose version the table names
    extra: str  # of pyproject.toml
    page: str  # of docs/guide
    scenario: list[Scenario]
    python: str = ""  # for instance "3.12 3.13", the first there is; "" is what Skerry runs with
    # Distributions that only the tests need, beside what the extra asks for.
    requires: list[str] = []
    # The same, installed without what they ask for: a client within a package that brings gigabytes.
    alone: list[str] = []
    explained: list[Explained] = []
    name: str = ""  # of its folder

    @property
    def place(self) -> Path:
        """Its folder."""
        return TOOLS / self.name


def tools(only: tuple[str, ...] = ()) -> list[Tool]:
    """Returns those named, or all; raises SystemExit for a name that is none."""
    found = {
        path.parent.name: msgspec.structs.replace(
            msgspec.toml.decode(path.read_bytes(), type=Tool), name=path.parent.name
        )
        for path in sorted(TOOLS.glob("*/tool.toml"))
    }
    if unknown := set(only) - set(found):
        raise SystemExit(
            f"no such tool: {', '.join(sorted(unknown))}; there are {', '.join(found)}"
        )
    return [tool for name, tool in found.items() if not only or name in only]
