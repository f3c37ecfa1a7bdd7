"""Values of a wrong type are told by name where they are given, not by what breaks on them."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from skerry.errors import InvalidRequest

T = TypeVar("T", bound=msgspec.Struct)


def typed(spec: T) -> T:
    """Returns the spec; InvalidRequest names a field whose value is not of its type."""
    try:
        return msgspec.convert(msgspec.structs.asdict(spec), type(spec))
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        name = where.rstrip("`").removesuffix("_s")  # ttl= and timeout= are in seconds
        raise InvalidRequest(f"{name}: {what[:1].lower()}{what[1:]}") from None
