"""One function call whose input, output or files are streamed: a WebSocket, both ways at once."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import aiohttp
import msgspec

from skerry.errors import InvalidRequest, Unavailable
from skerry.sdk.call_inputs import CallInputs
from skerry.sdk.tarstream import TarStream
from skerry.sdk.transfer import unpack_tree
from skerry.sdk.transport import Transport, encode
from skerry.spec.function import CallSpec
from skerry.spec.function_result import FETCHED_BYTES_MAX, CallResult
from skerry.wire.functions import PIECE_BYTES, WINDOW_BYTES, CallEvent, CallFeed, CallOpen

OPEN_BYTES_MAX = 2 << 20  # of the first message
OnOutput = Callable[[str, bytes], Awaitable[None] | None]

_decode = msgspec.msgpack.Decoder(CallEvent).decode
_TAR_EXTRA = 8 << 20  # of headers and padding in a tar of small files


class StreamedCall:
    """One attempt at a call. `begun` once anything may have run or come of it.

    Files that were fetched go beneath `fetch_to`, or are held; output goes to `on_output`, or is held.
    """

    def __init__(
        self,
        transport: Transport,
        spec: CallSpec,
        inputs: CallInputs,
        *,
        fetch_to: Path | None,
        on_output: OnOutput | None,
    ) -> None:
        self._transport = transport
        self._spec = spec
        self._inputs = inputs
        self._fetch_to = fetch_to
        self._on_output = on_output
        self._held = {"stdout": bytearray(), "stderr": bytearray()}
        self._files: asyncio.Queue[bytes | None] = asyncio.Queue(8)
        self._taken = 0
        self._room = asyncio.Event()
        self._wanted = asyncio.Event()  # the call takes its input: it has a place
        self.begun = False
        self.fed = False  # input was read that cannot be read again
        self.came = False  # output, which cannot be taken back

    async def run(self) -> CallResult:
        """Returns how it ended; leaving early ends it inside.

        Raises the error that the node named, what the input raised, and Unavailable for a connection
        that was lost.
        """
        first = encode(
            CallOpen(
                call=self._spec,
                files=self._inputs.files is not None,
                stdin=self._inputs.stdin is not None,
            )
        )
        if len(first) > OPEN_BYTES_MAX:
            raise InvalidRequest(
                f"code and arguments of a streamed call: {len(first)} bytes, at most {OPEN_BYTES_MAX}"
            )
        socket = await self._transport.socket("/v1/functions/attach")
        try:
            return await self._converse(socket, first)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Unavailable(f"the call at {self._transport.where} broke off: {error}") from error
        finally:
            await socket.close()

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse, first: bytes) -> CallResult:
        self.begun = True
        await socket.send_bytes(first)
        feeding = asyncio.ensure_future(self._feed(socket))
        saving = asyncio.ensure_future(self._save())
        hearing = asyncio.ensure_future(self._hear(socket))
        working = {feeding, saving, hearing}
        try:
            while not hearing.done():
                done, working = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                for one in done - {hearing}:
                    one.result()  # raises what went wrong here
            return self._whole(hearing.result(), await saving)
        finally:
            for one in (feeding, saving, hearing):
                one.cancel()
            await asyncio.wait({feeding, saving, hearing})

    async def _hear(self, socket: aiohttp.ClientWebSocketResponse) -> CallResult:
        """Takes events up to the result."""
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                break
            event = _decode(message.data)
            if event.error is not None:
                raise event.error.to_error()
            if event.result is not None:
                await self._files.put(None)
                return event.result
            if event.taken is not None:
                self._taken = event.taken
                self._wanted.set()
                self._room.set()
            elif event.files is not None:
                await self._files.put(event.files)
            else:
                await self._hold("stdout" if event.stdout is not None else "stderr", event)
        raise Unavailable("the call broke off before its result")

    async def _hold(self, name: str, event: CallEvent) -> None:
        data = event.stdout if event.stdout is not None else event.stderr
        if not data:
            return
        self.came = True
        if self._on_output is not None:
            told = self._on_output(name, data)
            if inspect.isawaitable(told):
                await told
        else:
            self._held[name] += data

    async def _feed(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Sends input; that nobody takes it any more is no error: the call's end is told."""
        with contextlib.suppress(aiohttp.ClientError, ConnectionError):
            await self._send_all(socket)

    async def _send_all(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        sent = 0
        await self._wanted.wait()
        self.fed = self._inputs.once
        for source in (self._inputs.files, self._inputs.stdin):
            if source is None:
                continue
            async with aclosing(source()) as pieces:
                async for piece in pieces:
                    for at in range(0, len(piece), PIECE_BYTES):
                        data = piece[at : at + PIECE_BYTES]
                        while sent + len(data) - self._taken > WINDOW_BYTES:
                            self._room.clear()
                            await self._room.wait()
                        sent += len(data)
                        await socket.send_bytes(encode(CallFeed(data=data)))
            await socket.send_bytes(encode(CallFeed(end=True)))

    async def _save(self) -> dict[str, bytes]:
        """Puts files that come where they are wanted; returns those that are held."""
        first = await self._files.get()
        if first is None:
            return {}
        if self._fetch_to is not None:
            async with aclosing(self._pieces(first)) as pieces:
                await unpack_tree(pieces, self._fetch_to)
            return {}
        raw = bytearray()
        async with aclosing(self._pieces(first)) as pieces:
            async for piece in pieces:
                raw += piece
                if len(raw) > FETCHED_BYTES_MAX + _TAR_EXTRA:
                    raise InvalidRequest(
                        f"fetch: more than {FETCHED_BYTES_MAX} bytes: name a directory in fetch_to"
                    )
        return _members(bytes(raw))

    async def _pieces(self, first: bytes) -> AsyncGenerator[bytes]:
        piece: bytes | None = first
        while piece is not None:
            yield piece
            piece = await self._files.get()

    def _whole(self, result: CallResult, files: dict[str, bytes]) -> CallResult:
        held = {name: bytes(data) for name, data in self._held.items()}
        return msgspec.structs.replace(result, files={**result.files, **files}, **held)


def _members(raw: bytes) -> dict[str, bytes]:
    """Returns the regular files of a tar by name; SandboxFailed if it is damaged."""
    found: dict[str, bytes] = {}
    tar = TarStream(io.BytesIO(raw))
    for member in tar:
        if member.kind == b"0" and member.real_size is None:
            found[member.name.removeprefix("./")] = b"".join(tar.chunks())
    return found
