"""What a zygote's report and a call's answer say; both come from code of the image or of the user."""

from __future__ import annotations

from typing import Any, Final

import msgspec

TEXT_MAX: Final = 1 << 17
KINDS: Final = frozenset({"exception", "exit", "entry", "value", "size"})


class Failure(msgspec.Struct, frozen=True):
    """An error as code inside tells it.

    `kind` of an answer: `exception`; `exit` (SystemExit: the process's exit code is its own);
    `entry` (no such function); `value` (what it returned is not JSON-like: the message names the part
    and its type); `size` (it is longer than the call's `result_bytes`). Of a report: `import`,
    `threads`, `shared`, `interpreter`; `module` is then the one that is to blame.
    """

    kind: str
    type: str
    message: str
    traceback: str = ""
    module: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What a call has answered: a value, a failure, or neither (a program that ended, or a death)."""

    returned: bool = False
    value: Any = None
    error: Failure | None = None


class Report(msgspec.Struct, frozen=True):
    """What a zygote is made of, or why there is none."""

    python: str = ""
    seconds: dict[str, float] = msgspec.field(default_factory=dict)
    threads: int = 0
    held: list[str] = msgspec.field(default_factory=list)
    error: Failure | None = None


class _Told(msgspec.Struct):
    error: Failure | msgspec.UnsetType = msgspec.UNSET
    value: Any = msgspec.UNSET
    ready: Report | msgspec.UnsetType = msgspec.UNSET


def _failure(told: Failure) -> Failure:
    return Failure(*(getattr(told, name)[:TEXT_MAX] for name in told.__struct_fields__))


def read_answer(data: bytes) -> Answer:
    """Returns what descriptor 4 of a call has brought; ValueError for what no call of ours writes.

    Integers of any size are kept as they are. Texts are such as UTF-8 can say.
    """
    if not data:
        return Answer()
    try:
        told = msgspec.json.decode(
            data
        )  # json would take halves of surrogate pairs, and other encodings
        if isinstance(told, dict) and set(told) == {"value"}:
            return Answer(returned=True, value=told["value"])
        failure = msgspec.convert(told, _Told).error
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"the call's answer is none: {error}") from None
    if not isinstance(failure, Failure) or failure.kind not in KINDS:
        raise ValueError("the call's answer is none: neither a value nor an error")
    return Answer(error=_failure(failure))


def read_report(data: bytes) -> Report:
    """Returns what descriptor 4 of a zygote has brought; ValueError if it ended without a word."""
    try:
        told = msgspec.json.decode(data, type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the zygote's report is none: {error}") from None
    if isinstance(told.ready, Report):
        return told.ready
    if isinstance(told.error, Failure):
        return Report(error=_failure(told.error))
    raise ValueError("the zygote's report is none: neither ready nor an error")
