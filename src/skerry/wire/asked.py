"""How requests stand in the record of a sandbox: a node writes them so, who repeats them compares.

What is not given does not stand there. Names of files are texts, or their bytes if they are no UTF-8.
"""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

from skerry.spec.command import CommandSpec
from skerry.spec.limits import PATH_BYTES_MAX
from skerry.wire.files import FileOp

WORD_MAX: Final = 256  # of a user's name in a record; nobody has a longer one
TYPES_MAX: Final = 64
SCRIPT_KEPT: Final = 4096  # characters of a session's script in the record
# The error on record of a change whose content did not come whole: it is as if it never was asked for.
NOTHING_CHANGED: Final = "the client left before all had come: nothing was changed"
LOOKS: Final = frozenset({"stat", "exists", "list"})
_NAMES: Final = frozenset({"op", "path", "to", "path_bytes", "to_bytes"})


def named(path: str) -> str | bytes:
    """Returns a name of a file as it stands in a record: its bytes if they are no UTF-8.

    One that is longer than a name may be is refused by what acts; of it, the beginning stands.
    """
    raw = os.fsencode(path)[:PATH_BYTES_MAX]
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def of_path(path: str, user: str | None, **more: Any) -> dict[str, Any]:
    """Returns a request about a path, without what is not given."""
    kept = {name: value for name, value in more.items() if _given(value)}
    who = {} if user is None else {"user": user[:WORD_MAX]}
    return {"path": named(path), **who, **kept}


def of_op(what: FileOp) -> dict[str, Any]:
    """Returns an operation on names, without what is not given."""
    path, to = what.names()
    fields = {name: getattr(what, name) for name in what.__struct_fields__ if name not in _NAMES}
    kept = {
        name: value[:WORD_MAX] if isinstance(value, str) else value
        for name, value in fields.items()
        if _given(value)
    }
    return {"path": named(path), **({} if to is None else {"to": named(to)}), **kept}


def of_command(spec: CommandSpec) -> CommandSpec:
    """Returns a command as it is recorded: of a long script of a session, the beginning."""
    if spec.session is None or len(spec.shell or "") <= SCRIPT_KEPT:
        return spec
    return msgspec.structs.replace(spec, shell=(spec.shell or "")[:SCRIPT_KEPT])


def _given(value: Any) -> bool:
    return value is not None and value is not False and value != ""
