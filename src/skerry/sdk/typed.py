"""Values of a wrong type are told by name where they are given, not by what breaks on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from skerry.errors import InvalidRequest

E = TypeVar("E")
T = TypeVar("T", bound=msgspec.Struct)


def typed(spec: T) -> T:
    """Returns the spec; InvalidRequest names a field whose value is not of its type."""
    try:
        given = msgspec.structs.asdict(spec).items()
        return msgspec.convert({k: v for k, v in given if v is not msgspec.UNSET}, type(spec))
    except msgspec.ValidationError as error:
        raise wrong_type(error) from None


def wrong_type(error: msgspec.ValidationError) -> InvalidRequest:
    """Returns the error that names the field as a caller gave it."""
    what, _, where = str(error).partition(" - at `$.")
    name = where.rstrip("`").removesuffix("_s")  # ttl= and timeout= are in seconds
    return InvalidRequest(f"{name}: {what[:1].lower()}{what[1:]}")


def listed(name: str, names: Sequence[E]) -> tuple[E, ...]:
    """Returns the names; InvalidRequest for a single text, which would be taken letter by letter."""
    if isinstance(names, str):
        raise InvalidRequest(f"{name} is a list: write {name}=[{names!r}]")
    return tuple(names)
