"""A batch whose members are told as they come, over lost connections and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from skerry.errors import Overloaded, SkerryError, Unavailable
from skerry.sdk.loss import RECONNECT_FOR_S
from skerry.sdk.patience import Patience
from skerry.sdk.stream import frames_of
from skerry.sdk.transport import RETRY_MAX_S, Transport
from skerry.spec.sandbox import SandboxInfo, SandboxSpec
from skerry.wire.batch import BatchCreate, BatchEvent

_decode = msgspec.msgpack.Decoder(BatchEvent).decode


class BatchEvents:
    """One batch. Its spec must have a key: a repeat finds what an earlier request made.

    `errors` holds the members that could not be made, by number, once `finished`.
    """

    def __init__(self, transport: Transport, spec: SandboxSpec, count: int, wait_s: float) -> None:
        self._transport = transport
        self._spec = spec
        self._count = count
        self._patience = Patience(wait_s)
        self._seen: set[int] = set()
        self.errors: dict[int, SkerryError] = {}
        self.finished = False

    async def infos(self) -> AsyncGenerator[SandboxInfo, None]:
        """Yields each member once, as it becomes ready; raises what undid or refused the batch."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + RECONNECT_FOR_S
        while not self.finished:
            try:
                async with aclosing(self._one_request()) as infos:
                    async for info in infos:
                        give_up = loop.time() + RECONNECT_FOR_S
                        yield info
            except Overloaded as error:
                await self._patience.again(error)
            except Unavailable:
                if loop.time() + RETRY_MAX_S > give_up:
                    raise
                await asyncio.sleep(RETRY_MAX_S / 4)

    async def _one_request(self) -> AsyncGenerator[SandboxInfo, None]:
        body = BatchCreate(spec=self._spec, count=self._count, wait_s=self._patience.for_batch())
        self.errors.clear()
        chunks = self._transport.receive(
            "POST", "/v1/sandboxes/batch", params={"stream": "1"}, body=body
        )
        async with aclosing(chunks), aclosing(frames_of(chunks)) as frames:
            async for frame in frames:
                info = self._take(_decode(frame))
                if info is not None:
                    yield info
                if self.finished:
                    return
        raise Unavailable("the stream of the batch broke off")

    def _take(self, event: BatchEvent) -> SandboxInfo | None:
        """Returns a member that was not seen before; raises the error that ended the batch."""
        if event.error is not None:
            raise event.error.to_error()
        if event.end is not None:
            self.finished = True
        item = event.item
        if item is None or not 0 <= event.index < self._count or event.index in self._seen:
            return None
        if item.error is not None:
            self.errors[event.index] = item.error.to_error()
        elif item.info is not None:
            self._seen.add(event.index)
        return item.info
