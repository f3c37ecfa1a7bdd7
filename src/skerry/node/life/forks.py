"""Forks: new sandboxes that begin with what another one had written at one moment."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from skerry.errors import InvalidRequest
from skerry.node.life.batch import Batch, Batches
from skerry.node.life.creation import Origin
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import Sandbox
from skerry.node.life.views import views_of
from skerry.node.parts import Parts
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.batch import BatchCreate, BatchResult
from skerry.wire.commits import ForkBody


class Forks:
    """Batches whose members share one view. The view goes once all of them have copies of it."""

    def __init__(self, parts: Parts, lives: Lives, batches: Batches) -> None:
        self._lives, self._batches = lives, batches
        self._trail = parts.trail
        self._clock = parts.clock
        self._backends, self._sandboxes = parts.backends, parts.sandboxes

    def open(self, sandbox: Sandbox, body: ForkBody, *, owner: str | None, tenant: str) -> Batch:
        """Returns a batch to be run; InvalidRequest, or Overloaded if too many are under way."""
        create = BatchCreate(
            spec=spec_of(sandbox, body).check(),
            count=body.count,
            all_or_nothing=body.all_or_nothing,
            wait_s=body.wait_s,
        )
        return self._batches.open(create, owner=owner, tenant=tenant)

    async def collect(self, sandbox: Sandbox, batch: Batch) -> BatchResult:
        """Makes the members; raises what `Batches.collect` does.

        A repeat of a keyed one finds its members. Where not all of them are there (the node died
        meanwhile, or one could not be made) those that are go, and all are made anew: the members
        of a fork always begin with the same moment.
        """
        asked = {"count": batch.body.count} | ({"key": key} if (key := batch.body.spec.key) else {})
        async with self._trail.act(sandbox, "fork", asked) as act:
            result = await self._members(sandbox, batch)
            act.result = {
                "sandboxes": [one.info.id for one in result.items if one.info is not None]
            }
            return result

    async def _members(self, sandbox: Sandbox, batch: Batch) -> BatchResult:
        try:
            await self._batches.after_earlier(batch)
            found = self._batches.members(batch)
            if len(found) == batch.body.count:
                return await self._batches.collect(batch)
            for member in found:
                await self._lives.delete(member)
            with sandbox.active_while(self._clock):
                async with self._origin(sandbox) as batch.origin:
                    return await self._batches.collect(batch)
        finally:
            self._batches.close(batch)

    @asynccontextmanager
    async def _origin(self, sandbox: Sandbox) -> AsyncIterator[Origin]:
        await self._lives.ensure_standing(sandbox)
        views = views_of(sandbox, self._backends)
        if views is None:
            raise InvalidRequest(
                f"fork: the backend {sandbox.spec.backend} has no snapshots here (containers need a "
                "btrfs pool for what they write); `skerry doctor` says why"
            )
        backend, instance = views
        name = f"fork-{secrets.token_hex(10)}"
        mounted = (one.digest for one in sandbox.mounts)
        self._sandboxes.held[name] = (*sandbox.digests, *mounted)
        try:
            view = await instance.view(name)
            try:
                yield Origin(
                    sandbox.id,
                    view,
                    sandbox.digests,
                    sandbox.image,
                    sandbox.made_of,
                    sandbox.restored,
                )
            finally:
                await backend.drop_view(view)
        finally:
            self._sandboxes.held.pop(name, None)


def spec_of(sandbox: Sandbox, body: ForkBody) -> SandboxSpec:
    """Returns what the members of a fork are made from."""
    spec = sandbox.spec
    return msgspec.structs.replace(
        spec,
        key=body.key,
        labels=spec.labels | body.labels,
        ttl_s=spec.ttl_s if body.ttl_s is None else body.ttl_s or None,
        idle_timeout_s=(
            spec.idle_timeout_s if body.idle_timeout_s is None else body.idle_timeout_s or None
        ),
        detached=spec.detached if body.detached is None else body.detached,
        priority=spec.priority if body.priority is None else body.priority,
    )
