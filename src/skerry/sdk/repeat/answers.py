"""From what is on record of an operation to the answer that it had."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

import msgspec

from skerry.errors import ContentDropped, SkerryError
from skerry.sdk.trajectories import AsyncTrajectories
from skerry.spec.command import RunResult
from skerry.spec.files import Change, FileInfo
from skerry.spec.trajectory import Event, content_bytes, is_content
from skerry.wire.commits import CommitInfo, CommitState
from skerry.wire.files import FileEvent
from skerry.wire.http import DiffBody, ErrorBody, OpStatus, StreamEvent

PIECE: Final = 1 << 18
ENTRIES: Final = 500  # in one frame of a walk

_encode = msgspec.msgpack.Encoder().encode
_length = struct.Struct("<I").pack


def error_of(event: Event) -> SkerryError:
    """Returns the error that is on record."""
    return msgspec.convert(event.error, ErrorBody).to_error()


async def content_of(value: Any, trajectories: AsyncTrajectories) -> bytes:
    """Returns a content, which is fetched if it lies beside the record; ContentDropped, NotFound."""
    data = content_bytes(value)
    if data is not None:
        return data
    if "blob" in value:
        return await trajectories.blob(value["blob"])
    raise ContentDropped(
        f"{value['bytes']} bytes of an answer were too long to be kept, so it cannot be given again. "
        "Have less of it recorded (write to a file inside and read what is needed of it, output_limit="
        "), or more kept ([trajectory] content_bytes_max of the node, and a layer store to which it "
        "ships); with on_divergence='branch' and another request here the rollout goes on from its "
        "nearest commit",
        bytes=value["bytes"],
        sha256=value.get("sha256", ""),
    )


async def whole(value: Any, trajectories: AsyncTrajectories) -> Any:
    """Returns a value of a record with every content in it as its bytes."""
    if is_content(value):
        return await content_of(value, trajectories)
    if isinstance(value, dict):
        found = await asyncio.gather(*(whole(one, trajectories) for one in value.values()))
        return dict(zip(value, found, strict=True))
    if isinstance(value, list):
        return list(await asyncio.gather(*(whole(one, trajectories) for one in value)))
    return value


async def run_result(event: Event, trajectories: AsyncTrajectories) -> RunResult:
    """Returns how a command ended."""
    result = dict(event.result or {})
    for name in ("stdout", "stderr"):
        value = result.get(name)
        if value is not None:
            data = content_bytes(value)
            result[name] = await content_of(value, trajectories) if data is None else data
    return msgspec.convert(result, RunResult, builtin_types=(bytes,))


def running(event: Event, op: str) -> OpStatus:
    """Returns what a command in the background was told as when it was started."""
    request = event.request
    line = request.get("shell") or " ".join(map(str, request.get("argv", ())))
    return OpStatus(
        op_id=op,
        state="running",
        command=line if len(line) <= 200 else line[:197] + "...",
        started=event.started,
        interactive=bool(request.get("interactive")),
        terminal=request.get("terminal") is not None,
    )


async def status(event: Event, op: str, trajectories: AsyncTrajectories) -> OpStatus:
    """Returns how a command that has ended stands."""
    known = running(event, op)
    if event.error is not None:
        error = msgspec.convert(event.error, ErrorBody)
        return msgspec.structs.replace(known, state="lost", error=error)
    result = await run_result(event, trajectories)
    return msgspec.structs.replace(known, state="done", result=result)


def output(result: RunResult, stdout: int = 0, stderr: int = 0) -> Iterator[bytes]:
    """Yields a command's output from these offsets on, and its result, as they go over the wire."""
    for name, start in (("stdout", stdout), ("stderr", stderr)):
        for at, data in _kept(result, name):
            skip = max(0, start - at)
            for begin in range(skip, len(data), PIECE):
                event = msgspec.structs.replace(
                    StreamEvent(at=at + begin), **{name: data[begin : begin + PIECE]}
                )
                yield _frame(event)
    yield _frame(StreamEvent(result=result))


def _kept(result: RunResult, name: str) -> list[tuple[int, bytes]]:
    """Returns what was kept of a stream, and where each part began in it."""
    data: bytes = getattr(result, name)
    total: int = getattr(result, f"{name}_total")
    if total <= len(data):
        return [(0, data)]
    half = (len(data) + 1) // 2
    return [(0, data[:half]), (total - (len(data) - half), data[half:])]


def commit_info(event: Event, sandbox: str) -> CommitInfo:
    """Returns a commit as it was acknowledged."""
    result = event.result or {}
    return CommitInfo(
        id=event.op,
        sandbox=sandbox,
        name=str(event.request.get("name", "")),
        state=CommitState.PACKING,
        acknowledged=event.ended,
        freeze_seconds=float(result.get("freeze_seconds", 0.0)),
        seconds=event.ended - event.started,
    )


async def lines(value: Any, trajectories: AsyncTrajectories, of: type[Any]) -> list[Any]:
    """Returns entries that stand as JSON lines, or as they are."""
    if not is_content(value):
        found = await whole(value, trajectories)
        return [msgspec.convert(one, of, builtin_types=(bytes,)) for one in found]
    data = await content_of(value, trajectories)
    return [msgspec.json.decode(line, type=of) for line in data.splitlines() if line]


async def called(step_action: str, event: Event, trajectories: AsyncTrajectories) -> Any:
    """Returns the answer of a request that is answered in one piece, as plain values."""
    result = event.result or {}
    if step_action in ("file.stat", "file.exists", "file.list"):
        return await lines(result.get("entries", []), trajectories, FileInfo)
    if step_action == "disk.diff":
        changes = await lines(result.get("changes", []), trajectories, Change)
        return DiffBody(tuple(changes), float(result.get("frozen_seconds", 0.0)))
    if step_action.startswith("file.") and not result:
        return []
    return await whole(result, trajectories)


async def streamed(
    step_action: str, event: Event, trajectories: AsyncTrajectories
) -> AsyncGenerator[bytes, None]:
    """Yields the body of an answer that comes in pieces."""
    result = event.result or {}
    if step_action == "file.walk":
        entries = await lines(result.get("entries", []), trajectories, FileInfo)
        for at in range(0, len(entries), ENTRIES):
            yield _frame(FileEvent(entries=tuple(entries[at : at + ENTRIES])))
        yield _frame(FileEvent(done=True))
        return
    data = await content_of(result["content"], trajectories)
    for at in range(0, len(data), PIECE):
        yield data[at : at + PIECE]


def _frame(event: Any) -> bytes:
    data = _encode(event)
    return _length(len(data)) + data
