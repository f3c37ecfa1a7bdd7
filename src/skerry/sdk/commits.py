"""A handle on one commit, and what starts commits and forks."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from skerry.errors import Overloaded, SkerryError
from skerry.sdk.patience import Patience
from skerry.sdk.transport import Transport
from skerry.spec.layers import LayerManifest
from skerry.spec.sandbox import SandboxInfo
from skerry.wire.batch import BatchDelete, BatchResult
from skerry.wire.commits import CommitInfo, CommitState, ForkBody
from skerry.wire.http import CommitBody

ASK_AGAIN_S = 30.0  # one request of `wait` takes no longer
UNDO_WITHIN_S = 60.0  # a fork under way is ended first


class AsyncCommitHandle:
    """A commit that was acknowledged. It needs neither its sandbox nor this handle any more.

    `status` is what was last heard of it; `id` finds it again from any client of the node.
    """

    def __init__(self, transport: Transport, info: CommitInfo) -> None:
        self._transport = transport
        self.id = info.id
        self.freeze_seconds = info.freeze_seconds
        self.acknowledged = info.acknowledged
        self.status = info

    def __repr__(self) -> str:
        return f"<Commit {self.id} of {self.status.sandbox} as {self.status.name}: {self.status.state}>"

    async def refresh(self) -> CommitInfo:
        """Asks how it stands, and returns that."""
        return await self._ask(0.0)

    async def wait(self, timeout: float | None = None) -> LayerManifest:  # noqa: ASYNC109
        """Returns the layer once it can be used; raises why there is none.

        Raises TimeoutError after `timeout` seconds; the commit goes on.
        """
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        info = self.status
        while info.state is CommitState.PACKING:
            left = ASK_AGAIN_S if until is None else min(ASK_AGAIN_S, until - loop.time())
            info = await self._ask(max(0.0, left))
            if until is not None and loop.time() >= until:
                break
        if info.error is not None:
            raise info.error.to_error()
        if info.manifest is None:
            raise TimeoutError(f"commit {self.id} is being packed still: {info.progress}")
        return info.manifest

    async def _ask(self, wait: float) -> CommitInfo:
        self.status = await self._transport.call(
            "GET",
            f"/v1/commits/{self.id}",
            CommitInfo,
            repeatable=True,
            params={"wait": f"{wait:.3f}"},
        )
        return self.status


async def begin(transport: Transport, root: str, body: CommitBody) -> AsyncCommitHandle:
    """Returns the commit once it is acknowledged; the body must have an id."""
    info = await transport.call("POST", f"{root}/commits", CommitInfo, body=body, repeatable=True)
    return AsyncCommitHandle(transport, info)


async def fork(
    transport: Transport, root: str, body: ForkBody, wait: float, *, undo: bool
) -> list[SandboxInfo]:
    """Returns the members; the body must have a key. Raises the first one's error if all are wanted.

    Else those that could be made, and the first error only if that is none. With `undo`, a call that
    is cancelled leaves none behind.
    """
    patience = Patience(wait)
    try:
        result = await _forked(transport, root, body, patience)
    except asyncio.CancelledError:
        if undo:  # nobody could ever find them
            await transport.debts.say(lambda: _undo_quietly(transport, body.key))
        raise
    errors = [item.error.to_error() for item in result.items if item.error is not None]
    infos = [item.info for item in result.items if item.info is not None]
    if errors and (body.all_or_nothing or not infos):
        raise errors[0]
    return infos


async def _forked(
    transport: Transport, root: str, body: ForkBody, patience: Patience
) -> BatchResult:
    while True:
        asked = msgspec.structs.replace(body, wait_s=patience.for_batch())
        try:
            return await transport.call(
                "POST", f"{root}/fork", BatchResult, body=asked, repeatable=True
            )
        except Overloaded as error:
            await patience.again(error)


async def _undo_quietly(transport: Transport, key: str | None) -> None:
    with contextlib.suppress(SkerryError, TimeoutError):
        async with asyncio.timeout(UNDO_WITHIN_S):
            await transport.call(
                "POST",
                "/v1/sandboxes/batch/delete",
                BatchResult,
                body=BatchDelete(key=key),
                repeatable=True,
            )
