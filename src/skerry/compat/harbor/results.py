"""Results and output of commands as Harbor knows them."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

from harbor.environments.base import ExecResult
from msgspec.structs import replace

from skerry.compat.outcome import exit_status, remarks
from skerry.errors import OutcomeUnknown
from skerry.spec.command import RunResult
from skerry.spec.limits import MIB
from skerry.wire.http import StreamEvent

OUTPUT_LIMIT = 16 * MIB  # of each stream; beyond it output is cut, and stderr says so
STREAMS = ("stdout", "stderr")

OnOutput = Callable[[str, Any], Awaitable[None]]


def result_of(result: RunResult, timeout_sec: float | None) -> ExecResult:
    """Returns it with the status that a shell would give, and what else there is to say in stderr."""
    said = [remarks(result, timeout_sec)]
    if result.truncated:
        said.append(f"Output beyond {OUTPUT_LIMIT >> 20} MiB a stream was cut.")
    errors = result.error_text + "".join(f"{line}\n" for line in said if line)
    return ExecResult(stdout=result.text, stderr=errors, return_code=exit_status(result))


async def chunked(events: AsyncIterator[StreamEvent], on_output: OnOutput) -> RunResult:
    """Passes output on as it comes, no character torn over two pieces; returns it with the result."""
    decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in STREAMS}
    kept = {name: bytearray() for name in STREAMS}
    result, truncated = None, False
    async with aclosing(cast("AsyncGenerator[StreamEvent]", events)) as pieces:
        async for event in pieces:
            result = event.result or result
            for name in STREAMS:
                data: bytes = getattr(event, name) or b""
                room = OUTPUT_LIMIT - len(kept[name])
                truncated |= len(data) > room
                kept[name] += data[:room]
                if text := decoders[name].decode(data, event.result is not None):
                    await on_output(text, name)
    if result is None:
        raise OutcomeUnknown("the command's output ended without its result")
    stdout, stderr = (bytes(kept[name]) for name in STREAMS)
    return replace(result, stdout=stdout, stderr=stderr, truncated=truncated)
