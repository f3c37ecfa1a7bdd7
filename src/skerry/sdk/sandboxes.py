"""The sandboxes of a node: made one at a time or many at once, found, listed, destroyed."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Unpack

import msgspec

from skerry.errors import NotFound, Overloaded, SkerryError
from skerry.sdk.batch import BatchEvents
from skerry.sdk.commits import AsyncCommitHandle
from skerry.sdk.making import create_as
from skerry.sdk.options import SandboxOptions, spec_of
from skerry.sdk.patience import WAIT_S, Patience
from skerry.sdk.running import CANCEL_WITHIN_S
from skerry.sdk.sandbox import AsyncSandbox
from skerry.sdk.transport import Transport
from skerry.spec.ids import SANDBOX_PATTERN
from skerry.spec.sandbox import SandboxInfo, SandboxSpec
from skerry.wire.batch import BatchCreate, BatchDelete, BatchItem, BatchResult
from skerry.wire.commits import CommitInfo
from skerry.wire.http import SandboxPage

UNDO_WITHIN_S = 60.0  # a batch under way is ended first


class AsyncSandboxes:
    """The sandboxes of a node; of a job, if it has one: then what it makes and lists is the job's."""

    def __init__(self, transport: Transport, job: str | None = None) -> None:
        self._transport = transport
        self._job = job

    async def create(
        self,
        backend: str = "container",
        *,
        key: str | None = None,
        wait: float = WAIT_S,
        **options: Unpack[SandboxOptions],
    ) -> AsyncSandbox:
        """Returns a running sandbox; `options` are those of `skerry.SandboxOptions`.

        With `key`, a repeat returns the one that the first call made; a call without it that is
        cancelled leaves none behind. If there is no room it waits for up to `wait` seconds, first in
        the node's queue and then by asking again when the node said. Raises Overloaded with the limit
        and who holds it.
        """
        spec = self._of_job(spec_of(backend, key=key or secrets.token_hex(16), **options))
        try:
            info = await create_as(self._transport, spec, Patience(wait))
        except asyncio.CancelledError:
            if key is None:  # nobody could ever find it
                await self._transport.debts.say(lambda: self._undo_quietly(spec))
            raise
        return AsyncSandbox(self._transport, info)

    async def restore(
        self,
        name: str,
        backend: str = "container",
        *,
        key: str | None = None,
        wait: float = WAIT_S,
        **options: Unpack[SandboxOptions],
    ) -> AsyncSandbox:
        """Returns a running sandbox that shows what a commit holds, on the layers it was made on.

        Any node of the store will do, and reads only what is used. `options` are those of `create`,
        without `image` and `layers`; so is what it raises, and InvalidRequest if the name is no
        commit's, LayerDamaged if a layer that it lies on is gone (field `digest`: which one).
        """
        options["restore"] = name
        return await self.create(backend, key=key, wait=wait, **options)

    async def _undo_quietly(self, spec: SandboxSpec) -> None:
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(CANCEL_WITHIN_S):
                for info in await self.list(key=spec.key):
                    await AsyncSandbox(self._transport, info).destroy()

    async def create_many(
        self,
        count: int,
        backend: str = "container",
        *,
        wait: float = WAIT_S,
        **options: Unpack[SandboxOptions],
    ) -> list[AsyncSandbox]:
        """Returns `count` running sandboxes made in one request, or raises and leaves none.

        They are alike, with the options of `create`. Waits for room for all of them for up to
        `wait` seconds. Cancelled, it leaves none either.
        """
        spec = self._of_job(spec_of(backend, key=secrets.token_hex(16), **options))
        try:
            items = await self.create_batch(spec, count, all_or_nothing=True, wait=wait)
        except asyncio.CancelledError:
            await self._transport.debts.say(lambda: self._undo_batch(spec.key or "", ()))
            raise
        made = []
        for item in items:
            if item.error is not None:
                raise item.error.to_error()
            if item.info is not None:
                made.append(AsyncSandbox(self._transport, item.info))
        return made

    async def create_batch(
        self,
        spec: SandboxSpec,
        count: int,
        *,
        all_or_nothing: bool = False,
        wait: float = 0.0,
    ) -> tuple[BatchItem, ...]:
        """Asks for `count` sandboxes and returns each one's info or error, in order.

        Members for which there is no room wait for it for up to `wait` seconds. With a key in the
        spec a lost connection is followed by the same request again: members that were made are
        found by `KEY/i` and not made twice.
        """
        patience, spec = Patience(wait), self._of_job(spec)
        while True:
            body = BatchCreate(
                spec=spec, count=count, all_or_nothing=all_or_nothing, wait_s=patience.for_batch()
            )
            try:
                result = await self._transport.call(
                    "POST",
                    "/v1/sandboxes/batch",
                    BatchResult,
                    body=body,
                    repeatable=spec.key is not None,
                )
            except Overloaded as error:
                await patience.again(error)
            else:
                return result.items

    async def create_each(
        self,
        spec: SandboxSpec,
        count: int,
        *,
        wait: float = WAIT_S,
        failed: Callable[[int, SkerryError], None] | None = None,
    ) -> AsyncIterator[AsyncSandbox]:
        """Asks for `count` sandboxes in one request and yields each one as soon as it runs.

        A member that cannot be made, for lack of room within `wait` seconds too, is told to
        `failed` with its number; without that, the first such error is raised after all others were
        yielded. What was yielded is the caller's. Leaving early (break, an exception, a
        cancellation) undoes the rest, and none is left behind.
        """
        key = spec.key or secrets.token_hex(16)
        keyed = msgspec.structs.replace(self._of_job(spec), key=key)
        events = BatchEvents(self._transport, keyed, count, wait)
        yielded: list[str] = []
        debt = self._transport.debts.owe(lambda: self._undo_batch(key, yielded))
        try:
            async with contextlib.aclosing(events.infos()) as infos:
                async for info in infos:
                    yielded.append(info.id)
                    yield AsyncSandbox(self._transport, info)
        finally:
            await debt.settle(owed=not events.finished)
        for index, error in sorted(events.errors.items()):
            if failed is None:
                raise error
            failed(index, error)

    async def _undo_batch(self, key: str, keep: Sequence[str]) -> None:
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(UNDO_WITHIN_S):
                await self._transport.call(
                    "POST",
                    "/v1/sandboxes/batch/delete",
                    BatchResult,
                    body=BatchDelete(key=key, keep=tuple(keep)),
                    repeatable=True,
                )

    async def destroy_many(self, sandboxes: Sequence[AsyncSandbox | str]) -> None:
        """Destroys them in one request; raises the first error after all were tried."""
        ids = tuple(item if isinstance(item, str) else item.id for item in sandboxes)
        result = await self._transport.call(
            "POST",
            "/v1/sandboxes/batch/delete",
            BatchResult,
            body=BatchDelete(ids=ids),
            repeatable=True,
        )
        for item in result.items:
            if item.error is not None:
                raise item.error.to_error()

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """Returns a handle for an existing sandbox, by its id or the beginning that only it has.

        Raises NotFound if there is none, or more than one.
        """
        if SANDBOX_PATTERN.fullmatch(sandbox_id) is None:
            sandbox_id = await self._whole(sandbox_id)
        info = await self._transport.call(
            "GET", f"/v1/sandboxes/{sandbox_id}", SandboxInfo, repeatable=True
        )
        return AsyncSandbox(self._transport, info)

    async def commit(self, commit_id: str) -> AsyncCommitHandle:
        """Returns a handle on a commit by its id, whoever asked for it; NotFound."""
        info = await self._transport.call(
            "GET", f"/v1/commits/{commit_id}", CommitInfo, repeatable=True
        )
        return AsyncCommitHandle(self._transport, info)

    async def commits(self, sandbox_id: str | None = None) -> list[CommitInfo]:
        """Returns commits under way and the last ones, of one sandbox or of all, oldest first."""
        return await self._transport.call(
            "GET",
            "/v1/commits",
            list[CommitInfo],
            repeatable=True,
            params={"sandbox": sandbox_id} if sandbox_id else None,
        )

    def _of_job(self, spec: SandboxSpec) -> SandboxSpec:
        if self._job is None or spec.job is not None:
            return spec
        return msgspec.structs.replace(spec, job=self._job)

    async def _whole(self, beginning: str) -> str:
        found = [info.id for info in await self.list() if info.id.startswith(beginning)]
        if len(found) == 1 and beginning:
            return found[0]
        if not found or not beginning:
            raise NotFound(f"there is no sandbox {beginning[:64]!r}")
        raise NotFound(
            f"{beginning[:64]!r} begins the ids of {len(found)} sandboxes: write more of it"
        )

    async def list(
        self,
        *,
        state: str | None = None,
        labels: dict[str, str] | None = None,
        key: str | None = None,
        job: str | None = None,
    ) -> list[SandboxInfo]:
        """Returns all sandboxes that match, oldest first."""
        asked = (("state", state), ("key", key), ("job", job or self._job))
        query = [(name, value) for name, value in asked if value]
        query += [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        found: list[SandboxInfo] = []
        cursor: list[tuple[str, str]] = []
        while True:
            page = await self._transport.call(
                "GET", "/v1/sandboxes", SandboxPage, params=query + cursor, repeatable=True
            )
            found.extend(page.items)
            if page.cursor is None:
                return found
            cursor = [("cursor", page.cursor)]
