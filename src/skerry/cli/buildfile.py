"""`skerry.toml`: layers to be built by steps, in order.

[layer."workspace/sphinx"]
from = "debian:12"
layers = ["toolkit/compilers"]
context = "."                     # relative to this file
steps = ["pip install ./sphinx"]
env = { PIP_NO_INDEX = "1" }
memory = "2GiB"
timeout = 1800                    # seconds, of each step
workdir = "/build"
keep_context = false
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from typing import Any

from skerry.cli.options import DEFAULT_IMAGE
from skerry.errors import InvalidRequest, NotFound


@dataclass(frozen=True, kw_only=True)
class Build:
    """One layer to build."""

    name: str
    base: str = DEFAULT_IMAGE
    layers: tuple[str, ...] = ()
    context: str | None = None
    steps: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    memory: str = "2GiB"
    timeout: float = 1800.0
    workdir: str | None = None
    keep_context: bool = False


_TYPES: dict[str, type | tuple[type, ...]] = {
    "from": str, "layers": list, "context": str, "steps": list, "env": dict, "memory": str,
    "timeout": (int, float), "workdir": str, "keep_context": bool,
}  # fmt: skip


def read(path: str, name: str | None = None) -> list[Build]:
    """Returns the layers of a build file, or the one asked for; InvalidRequest names what is wrong."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError as error:
        raise NotFound(f"there is no build file {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: {error}") from error
    if set(content) - {"layer"}:
        unknown = ", ".join(sorted(set(content) - {"layer"}))
        raise InvalidRequest(f'{path}: unknown: {unknown}; layers are tables [layer."kind/name"]')
    tables = content.get("layer", {})
    if not isinstance(tables, dict) or not tables:
        raise InvalidRequest(f"{path} describes no layer")
    if name is not None:
        if name not in tables:
            raise NotFound(f"{path} does not describe {name}, only {', '.join(tables)}")
        tables = {name: tables[name]}
    return [_build(path, each, table) for each, table in tables.items()]


def _build(path: str, name: str, table: Any) -> Build:
    where = f"{path}: {name}"
    if not isinstance(table, dict):
        raise InvalidRequest(f"{where} must be a table")
    for key, value in table.items():
        if key not in _TYPES:
            raise InvalidRequest(f"{where}: unknown key {key}; known: {', '.join(_TYPES)}")
        if not isinstance(value, _TYPES[key]):
            raise InvalidRequest(f"{where}: {key} has the wrong type")
        words = (
            value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
        )
        if not all(isinstance(word, str) for word in words):
            raise InvalidRequest(f"{where}: {key} must hold texts")
    values = {("base" if key == "from" else key): value for key, value in table.items()}
    for key in ("layers", "steps"):
        values[key] = tuple(values.get(key, ()))
    if not values["steps"]:
        raise InvalidRequest(f"{where}: steps are missing")
    if "context" in values:
        values["context"] = os.path.join(os.path.dirname(os.path.abspath(path)), values["context"])
    return Build(name=name, **values)
