"""Values as JSON, with every field: readers of `--json` need not know which defaults are left out."""

from __future__ import annotations

import base64
import dataclasses
from enum import Enum
from typing import Any

import msgspec


def jsonable(value: Any) -> Any:
    """Returns what `json.dumps` takes: structs as objects, bytes as text or under NAME_base64."""
    if isinstance(value, msgspec.Struct):
        return _object(msgspec.structs.asdict(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object({item.name: getattr(value, item.name) for item in dataclasses.fields(value)})
    if isinstance(value, dict):
        return _object(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # no lone surrogate in JSON
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def _object(fields: dict[Any, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in fields.items():
        out[str(name)] = jsonable(value)
        if isinstance(value, bytes) and not _is_text(value):
            out[f"{name}_base64"] = base64.b64encode(value).decode("ascii")
    return out


def _is_text(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
