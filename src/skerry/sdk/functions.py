"""Function calls: short programs on warm containers, without a sandbox to make or to end.

out = await client.functions.call("python", code="def main(x): return x*x", args=[7])
out.value                                  # 49
out.limit, out.usage.cpu_s                 # which limit ended it, if one did; what it used
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import msgspec

from skerry.errors import InvalidRequest, OutcomeUnknown, Overloaded, SkerryError, Unavailable
from skerry.sdk.call_inputs import CallInputs, with_inputs
from skerry.sdk.call_stream import OnOutput, StreamedCall
from skerry.sdk.function_options import CallOptions, InputFiles, call_of, environment_of
from skerry.sdk.loss import RECONNECT_FOR_S
from skerry.sdk.patience import SERVER_WAIT_S, Patience
from skerry.sdk.transport import RETRY_FIRST_S, RETRY_MAX_S, Transport
from skerry.sdk.typed import typed
from skerry.spec.function import CallSpec, Isolation
from skerry.spec.function_result import CallResult, PoolInfo, Prewarm

CALL_PATH = "/v1/functions/call"
AT_ONCE = 64  # calls of `call_many` that are under way

CallProgress = Callable[[int, int], None]


class CallOutcome(msgspec.Struct, frozen=True):
    """One call of many: its number, and its result or the error of a call that was not answered."""

    index: int
    answer: CallResult | None = None
    error: SkerryError | None = None

    @property
    def result(self) -> CallResult:
        """The result; raises the error where there is none."""
        if self.answer is None:
            raise self.error or OutcomeUnknown("there is no result")
        return self.answer


class AsyncFunctions:
    """Function calls on a node."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def call(
        self,
        kind: str | CallSpec,
        *,
        stdin: bytes | str | os.PathLike[str] | AsyncIterator[bytes] = b"",
        files: InputFiles | None = None,
        fetch_to: str | os.PathLike[str] | None = None,
        on_output: OnOutput | None = None,
        **options: Unpack[CallOptions],
    ) -> CallResult:
        """Calls a function in a container that is there already, and returns how it ended.

        `kind` is "python", "script", "program" or "compile_run"; `help(skerry.CallOptions)` lists what
        each takes and the limits. Or it is a CallSpec, without options. `files` are contents (bytes, a
        text) or local paths by their name in /call, or a local directory whose content is there; `stdin`
        is content, a local path or an iterator. What is long is streamed. Files that match `fetch` are
        in the result, or with `fetch_to` beneath a local directory. `on_output` is told ("stdout" or
        "stderr", a piece) as it comes, or awaited, and the result holds none then.

        A call that failed, or that a limit ended, is a result; `result.check()` raises for it. Stopping
        to wait, by Ctrl-C too, ends the call. It has run once or never: one that never started is tried
        again, for a place it waits `wait` seconds (Overloaded). Raises OutcomeUnknown if the answer was
        lost and it is not `idempotent`; InvalidRequest, NotFound and ImageBroken of its image.
        """
        spec = _spec_of(kind, options)
        target = None if fetch_to is None else Path(fetch_to)
        if _reads(stdin, files):
            spec, inputs = await asyncio.to_thread(with_inputs, spec, stdin, files)
        else:
            spec, inputs = with_inputs(spec, stdin, files)
        streamed = inputs.streamed or target is not None or on_output is not None
        spec.check(streamed=on_output is not None)
        patience = Patience(spec.wait_s)
        while True:
            asked = msgspec.structs.replace(spec, wait_s=min(patience.left(), SERVER_WAIT_S))
            try:
                if streamed:
                    return await self._streamed(asked, inputs, target, on_output)
                if spec.idempotent:
                    return await self._transport.call(
                        "POST", CALL_PATH, CallResult, body=asked, repeatable=True
                    )
                return await self._transport.call_once(CALL_PATH, CallResult, asked)
            except Overloaded as error:
                await patience.again(error)

    async def call_many(
        self,
        kind: str,
        calls: Iterable[Mapping[str, Any]],
        *,
        at_once: int = AT_ONCE,
        progress: CallProgress | None = None,
        **options: Unpack[CallOptions],
    ) -> list[CallOutcome]:
        """Makes many calls, `at_once` at a time, and returns their outcomes in the order given.

        Each of `calls` is what is its own, of all that `call` takes; `options` hold for all. A call that
        could not be answered is an outcome with its error, which its `result` raises; the others go on.
        `progress` is told how many are done, and of how many. Stopping to wait ends those under way.
        """
        given = list(calls)
        outcomes: list[CallOutcome | None] = [None] * len(given)
        done = 0
        async for outcome in self.call_each(kind, given, at_once=at_once, **options):
            outcomes[outcome.index] = outcome
            done += 1
            if progress is not None:
                progress(done, len(given))
        return [one for one in outcomes if one is not None]

    async def call_each(
        self,
        kind: str,
        calls: Iterable[Mapping[str, Any]],
        *,
        at_once: int = AT_ONCE,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[CallOutcome]:
        """Makes many calls as `call_many` does, and yields each outcome as it comes.

        `calls` is read as they are begun, so it may be endless. Leaving the loop ends those under way.
        """
        if not isinstance(at_once, int) or at_once < 1:
            raise InvalidRequest(f"at_once is a number of calls, not {at_once!r}")
        numbered = enumerate(calls)
        running: set[asyncio.Task[CallOutcome]] = set()
        done: set[asyncio.Task[CallOutcome]] = set()
        try:
            while True:
                while len(running) < at_once and (following := next(numbered, None)) is not None:
                    running.add(asyncio.create_task(self._one(kind, *following, options)))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in running:
                task.cancel()
            # One mistake in the options raises in each of them: it is told once.
            await asyncio.gather(*running, *done, return_exceptions=True)

    async def prewarm(
        self,
        *,
        image: str = "debian:12",
        layers: Sequence[str] = (),
        modules: Sequence[str] = (),
        python: str = "python3",
        minimum: int = 1,
        maximum: int | None = None,
        keep: float = 600.0,
        isolation: str = "process",
        device: str | None = None,
    ) -> PoolInfo:
        """Returns the pool of an environment once it has `minimum` containers ready.

        With a device's name: on each device of that name, and the pool of the first. They are kept for
        `keep` seconds, whatever the demand is; `maximum` is the most that there will be. Raises
        Overloaded where there is no room for them, and why a container cannot be made.
        """
        given = {"image": image, "layers": layers, "modules": modules, "python": python}
        if isolation not in Isolation.__members__.values():
            raise InvalidRequest(f"isolation must be one of {', '.join(Isolation)}")
        body = Prewarm(
            environment=environment_of(given),
            isolation=Isolation(isolation),
            device=device,
            minimum=minimum,
            maximum=maximum,
            keep_s=keep,
        )
        return await self._transport.call(
            "POST", "/v1/functions/prewarm", PoolInfo, body=typed(body).check(), repeatable=True
        )

    async def pools(self) -> list[PoolInfo]:
        """Returns how the pools of the node stand, the one used last first."""
        return await self._transport.call(
            "GET", "/v1/functions/pools", list[PoolInfo], repeatable=True
        )

    async def _one(self, kind: str, index: int, own: object, options: CallOptions) -> CallOutcome:
        try:
            if not isinstance(own, Mapping):
                what = f"number {index} is a {type(own).__name__}"
                raise InvalidRequest(f"calls: {what}, not a dict of options as {{'args': [7]}}")
            merged: dict[str, Any] = {**options, **own}
            return CallOutcome(index, answer=await self.call(kind, **merged))
        except SkerryError as error:
            return CallOutcome(index, error=error)

    async def _streamed(
        self, spec: CallSpec, inputs: CallInputs, fetch_to: Path | None, on_output: OnOutput | None
    ) -> CallResult:
        """Streams a call, again as long as it has not started, or may be repeated."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + RECONNECT_FOR_S
        pause = RETRY_FIRST_S
        while True:
            one = StreamedCall(
                self._transport, spec, inputs, fetch_to=fetch_to, on_output=on_output
            )
            try:
                return await one.run()
            except Unavailable as error:
                lost = one.begun and "retry_after_s" not in error.fields
                if lost and (one.came or one.fed or not spec.idempotent):
                    raise OutcomeUnknown(f"{error.message}; the call may have run") from error
                if one.fed or loop.time() + pause > give_up:
                    raise
            except Overloaded as error:
                if one.fed:  # what was read of its input cannot be given again
                    raise Unavailable(error.message, **error.fields) from error
                raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
            pause = min(pause * 2, RETRY_MAX_S)


def _spec_of(kind: str | CallSpec, options: CallOptions) -> CallSpec:
    if not isinstance(kind, CallSpec):
        return call_of(kind, **options)
    if options:
        raise InvalidRequest(f"{min(options)}: a CallSpec says all of it")
    return kind


def _reads(stdin: object, files: InputFiles | None) -> bool:
    """Whether local files are to be read for it."""
    paths = files.values() if isinstance(files, Mapping) else (files,) if files else ()
    return any(isinstance(one, os.PathLike) for one in (stdin, *paths))
