"""From records to events: what each kind of the journal's entries says of an operation.

Records are read as plain values, not as the types that a node writes today: what an older or a newer
one wrote is shown as far as it is understood, and what is damaged in one costs one event its detail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from skerry.spec.trajectory import Event, Outcome, as_json, request_digest
from skerry.trajectory.format.segment import Found
from skerry.trajectory.reading.outline import Outline

_USAGE: Final = ("cpu_seconds", "memory_peak_bytes")


class Draft(msgspec.Struct, kw_only=True):
    """An event while its records are being looked at."""

    action: str
    op: str = ""
    request: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    started: float = 0.0
    ended: float = 0.0
    usage: dict[str, Any] = {}


def fold(outline: Outline, index: int, read: Callable[[int], Found]) -> Event:
    """Returns an event of an outline; `read` gives the record at a place."""
    begin = read(outline.begins[index])
    place = outline.ends[index]
    last = begin if place in (0, outline.begins[index]) else read(place)
    kind, data = begin.record.kind, _mapping(begin.record.data)
    draft = _DRAFTS.get(kind, _other)(data, _mapping(last.record.data), last.record.kind)
    outcome = outline.outcome(index)
    time = begin.record.time_ns / 1e9
    done = outcome in (Outcome.DONE, Outcome.VOID)
    if outcome is Outcome.DONE and draft.error is not None:
        lost = draft.error.get("code") == "outcome_unknown"
        outcome = Outcome.UNKNOWN if lost else Outcome.ERROR
    newest = begin if last.record.seq < begin.record.seq else last
    return Event(
        ordinal=index,
        sandbox=outline.sandbox,
        action=draft.action,
        op=draft.op,
        request=draft.request,
        request_digest=request_digest(draft.request),
        outcome=outcome,
        result=(draft.result or {}) if outcome is Outcome.DONE else None,
        error=draft.error if outcome in (Outcome.ERROR, Outcome.UNKNOWN) else None,
        started=draft.started or time,
        ended=(draft.ended or newest.record.time_ns / 1e9) if done else 0.0,
        usage=draft.usage,
        seq=newest.record.seq,
        hash=newest.hash.hex(),
        rollout=outline.rollout,
        job=outline.job,
    )


def _create(began: dict[str, Any], last: dict[str, Any], kind: str) -> Draft:
    names = [name for name in ("digests", "parent", "restored") if name in began]
    result: dict[str, Any] = {name: as_json(began[name]) for name in names}
    draft = Draft(action="create", request=_request(began.get("spec")), result=result)
    draft.started = _number(began.get("created"))
    if kind == "made":
        result["create_ms"] = _number(last.get("create_ms"))
    elif kind == "ending":
        draft.error = _failure(last)
    return draft


def _command(asked: dict[str, Any], last: dict[str, Any], kind: str) -> Draft:
    spec = _mapping(asked.get("spec"))
    request = _request(spec)
    spooled = asked.get("stdin_spooled")
    if isinstance(spooled, int) and spooled:  # of before contents were kept
        request["stdin"] = {"bytes": spooled, "dropped": True}
    request |= _request(asked.get("kept"))
    draft = Draft(
        action="session.run" if spec.get("session") is not None else "run",
        op=_hex(asked.get("op")),
        request=request,
        started=_number(asked.get("started")),
    )
    if kind == "answered":
        _answer(draft, last)
    return draft


def _answer(draft: Draft, answered: dict[str, Any]) -> None:
    if answered.get("error") is not None:
        draft.error = _request(answered["error"])
        return
    result = _request(answered.get("result"))
    spooled = answered.get("spooled")
    for number in spooled if isinstance(spooled, list) else ():
        stream = "stdout" if number == 1 else "stderr"
        result[stream] = {"bytes": result.get(f"{stream}_total", 0), "dropped": True}
    draft.result = result | _request(answered.get("kept"))
    draft.ended = _number(result.get("ended"))
    draft.usage = {name: result[name] for name in _USAGE if name in result}


def _did(doing: dict[str, Any], last: dict[str, Any], kind: str) -> Draft:
    """Anything else: announced with "doing" if it changes something, told by "did"."""
    told = last if kind == "did" else doing
    draft = Draft(
        action=str(doing.get("action", ""))[:80],
        op=_hex(doing.get("op")),
        request=_request(doing.get("request")) | _request(told.get("request")),
        started=_number(doing.get("started")),
    )
    if kind == "did":
        draft.result = _request(told.get("result"))
        draft.error = _request(told["error"]) if told.get("error") is not None else None
        draft.ended = _number(told.get("ended"))
        draft.usage = _request(told.get("usage"))
    return draft


def _session(data: dict[str, Any], _last: dict[str, Any], _kind: str) -> Draft:
    request = {"id": str(data.get("id", "")), **_request(data.get("spec"))}
    return Draft(action="session.create", op=_hex(data.get("op")), request=request)


def _session_ended(data: dict[str, Any], _last: dict[str, Any], _kind: str) -> Draft:
    return Draft(action="session.close", request={"id": str(data.get("id", ""))})


def _ending(data: dict[str, Any], _last: dict[str, Any], _kind: str) -> Draft:
    state = str(data.get("state", ""))
    if state == "failed":
        return Draft(action="fail", error=_failure(data))
    reason = data.get("reason")
    result = {"reason": str(reason)} if reason else {}
    return Draft(action="delete" if data.get("delete") else "stop", result=result)


def _failure(ending: dict[str, Any]) -> dict[str, Any]:
    """Returns why a sandbox failed, as the error that its callers get."""
    lost = bool(ending.get("lost"))
    return {
        "code": "sandbox_failed",
        "fault": "platform" if lost else "sandbox",
        "message": str(ending.get("reason") or "it failed"),
        "retryable": False,
        "fields": {"lost": True} if lost else {},
    }


def _other(data: dict[str, Any], _last: dict[str, Any], kind: str) -> Draft:
    whole = {name: value for name, value in data.items() if name != "type"}  # its tag
    return Draft(action=kind[:40], request=_request(whole))


_DRAFTS: Final[dict[str, Callable[[dict[str, Any], dict[str, Any], str], Draft]]] = {
    "began": _create,
    "asked": _command,
    "doing": _did,
    "did": _did,
    "session": _session,
    "session-ended": _session_ended,
    "ending": _ending,
}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _request(value: Any) -> dict[str, Any]:
    """Returns a part of a record as plain JSON."""
    found: dict[str, Any] = as_json(_mapping(value))
    return found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _hex(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else ""
