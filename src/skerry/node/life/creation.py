"""How a sandbox comes to be: checked, admitted, recorded, made; or undone without a trace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from skerry.backends.api import Backend, CreateRequest, View
from skerry.backends.shared import proc
from skerry.errors import Conflict, InvalidRequest, SandboxFailed, SkerryError, Unavailable
from skerry.lifecycle.table import Event
from skerry.node import ledger
from skerry.node.admission.shortage import Claim
from skerry.node.admission.waits import ClientLeft, Gone
from skerry.node.images import Environment
from skerry.node.life.sandbox import Sandbox
from skerry.node.parts import Parts
from skerry.spec import limits
from skerry.spec.layers import ImageConfig, LayerManifest, MountMode, RootfsPlan
from skerry.spec.sandbox import SandboxSpec, State

if TYPE_CHECKING:
    from skerry.node.life.lives import Lives


class Origin(NamedTuple):
    """What a fork begins with, and the layers that it is on: those of its parent, by digest."""

    parent: str
    view: View
    digests: tuple[str, ...]
    image: ImageConfig
    made_of: tuple[LayerManifest, ...] = ()
    restored: str | None = None

    def environment(self) -> Environment:
        """Returns what it is composed of."""
        plan = RootfsPlan(self.view.layers)
        return Environment(plan, self.digests, self.image, self.made_of, self.restored)


class Creation:
    """The first part of a sandbox's life; `lives` has the rest."""

    def __init__(self, parts: Parts, lives: Lives) -> None:
        self._lives = lives
        self._clock = parts.clock
        self._tasks = parts.tasks
        self._identity = parts.identity
        self._sandboxes = parts.sandboxes
        self._admission = parts.admission
        self._ledger = parts.ledger
        self._images = parts.images
        self._backends = parts.backends
        self._owners = parts.owners
        self._networks = parts.networks
        self._uplinks = parts.uplinks
        self._blobs = parts.blobs
        self._jobs = parts.jobs
        self._boot = proc.boot_id()
        self._trail = parts.trail

    async def create(
        self,
        spec: SandboxSpec,
        *,
        owner: str | None = None,
        tenant: str = "",
        wait_s: float = 0.0,
        gone: Gone | None = None,
        bounded: bool = True,
        reserved: list[str] | None = None,
        origin: Origin | None = None,
    ) -> Sandbox:
        """Returns a running sandbox, or the one that its key names already.

        Waits for room for up to `wait_s` seconds, unless `gone` returns before (the client has
        left). `reserved` names claims of which this one takes one. With `origin` it begins with
        what that holds, on the same layers; else layers that are being packed are waited for.
        Raises InvalidRequest, NotFound (no such layer), Conflict (the key names another spec),
        Overloaded, SandboxFailed, Unavailable; then nothing is left.
        """
        _check(spec)
        self._trail.levels.check(spec)
        await self._networks.check(spec.network)
        self._uplinks.check(spec)
        if spec.key is not None and (known := await self._joined(spec, spec.key)) is not None:
            return known
        backend = self._backend(spec)
        if origin is None:
            await self._images.until_there(spec)
        admission, monotonic = self._admission, self._clock.monotonic()
        sandbox = self._asked(spec, owner=owner, tenant=tenant)
        claim = claim_of(sandbox)
        if reserved:
            admission.swap(reserved.pop(), claim)
        else:
            sandbox.waits = admission.ask(
                claim, wait_s=wait_s, priority=spec.priority, key=spec.key
            )
        self._sandboxes.add(sandbox)
        self._owners.add(sandbox)
        self._jobs.add(sandbox)
        try:
            if sandbox.waits is not None:
                await admission.until_admitted(sandbox.waits, gone)
                sandbox.waits = None
                monotonic = self._clock.monotonic()  # waiting for room is no part of making
            async with admission.place(claim, priority=spec.priority, bounded=bounded, gone=gone):
                _check_wanted(sandbox)
                plan = await self._composed(sandbox, origin)
                await self._make(sandbox, backend, plan, monotonic, origin)
        except BaseException as error:
            cleaning = self._create_failed(sandbox, error)
            if cleaning is not None and isinstance(error, SkerryError):
                await asyncio.shield(cleaning)
            raise
        self._created(sandbox)
        await self._trail.levels.reach(spec)
        return sandbox

    def _backend(self, spec: SandboxSpec) -> Backend:
        backend = self._backends.get(spec.backend)
        if backend is None:
            names = ", ".join(sorted(self._backends))
            raise InvalidRequest(
                f"backend: {spec.backend[:80]!r} is none of {names} (an image is image=)"
            )
        return backend

    async def _composed(self, sandbox: Sandbox, origin: Origin | None) -> RootfsPlan:
        """Returns what it is made of, and notes that with it."""
        if origin is None:
            environment = await self._images.plan(sandbox.spec)
        else:
            environment = origin.environment()
            sandbox.parent = origin.parent
        plan, sandbox.digests, sandbox.image = environment[:3]
        sandbox.made_of, sandbox.restored = environment.made_of, environment.restored
        sandbox.mounts = plan.mounts()
        return plan

    def _asked(self, spec: SandboxSpec, *, owner: str | None, tenant: str) -> Sandbox:
        """Returns a sandbox that is asked for; no connection owns what is in a job."""
        holder = self._jobs.holder(spec, tenant=tenant, owner=owner)
        owner = self._owners.admit(owner, detached=outlives(spec))
        name, wall, monotonic = (
            self._identity.sandbox_id(),
            self._clock.wall(),
            self._clock.monotonic(),
        )
        return Sandbox(name, spec, (), wall, wall, monotonic, monotonic, owner=owner, holder=holder)

    async def _joined(self, spec: SandboxSpec, key: str) -> Sandbox | None:
        """Returns what the key names once it runs; None if it is this request's to make."""
        while (known := await self._known(key)) is not None:
            try:
                return await self._join(known, spec)
            except ClientLeft:
                continue  # it waited for somebody who has gone
        return None

    async def _known(self, key: str) -> Sandbox | None:
        """Returns what the key names; one that is being deleted is waited for, and named no more."""
        while (known := self._sandboxes.by_key.get(key)) is not None and known.deleting:
            await known.changed()
        return known

    async def _join(self, known: Sandbox, spec: SandboxSpec) -> Sandbox:
        if msgspec.msgpack.encode(known.asked_spec) != msgspec.msgpack.encode(spec):
            raise Conflict(f"the key {spec.key!r} names {known.id}, made from another spec")
        while known.state is State.CREATING and not known.gone:
            await known.changed()
        if known.gone:
            raise known.end_error or SandboxFailed("the create that this one joined was undone")
        return known

    async def _make(
        self,
        sandbox: Sandbox,
        backend: Backend,
        plan: RootfsPlan,
        began: float,
        origin: Origin | None = None,
    ) -> None:
        spec = sandbox.spec
        if any(layer.mode is MountMode.VERIFIED for layer in plan.layers):
            if self._blobs is None:
                raise Unavailable(f"backend {spec.backend} cannot read layers on demand")
            await self._blobs.ready()
        self._ledger.append(
            sandbox.id,
            ledger.Began(
                spec,
                sandbox.digests,
                sandbox.created,
                sandbox.owner,
                sandbox.image,
                sandbox.mounts,
                sandbox.parent,
                sandbox.made_of,
                sandbox.restored,
                sandbox.holder.tenant,
                self._boot,
                sandbox.born,
            ),
        )
        instance = await backend.create(
            CreateRequest(
                instance_id=sandbox.id,
                rootfs=plan,
                hostname=spec.hostname,
                cpu=spec.cpu,
                memory_bytes=spec.memory_bytes,
                pids=spec.pids,
                nofile=spec.nofile,
                shm_bytes=spec.shm_bytes,
                disk_bytes=spec.disk_bytes,
                env=sandbox.inside_spec.env,
                detached=outlives(spec),
                cpu_class=spec.cpu_class,
                cpu_weight=spec.cpu_weight,
                cpu_burst=spec.cpu_burst,
                readonly=spec.readonly,
                hidden=spec.hidden,
                view=None if origin is None else origin.view,
            )
        )
        sandbox.instance = instance
        link = self._lives.link(sandbox)
        await self._networks.prepare(sandbox, link, await link.connect())
        sandbox.link = link
        sandbox.create_ms = round((self._clock.monotonic() - began) * 1000, 3)
        self._ledger.append(sandbox.id, ledger.Made(instance.record(), sandbox.create_ms))

    def _created(self, sandbox: Sandbox) -> None:
        sandbox.touch(self._clock.wall(), self._clock.monotonic())
        self._lives.deadlines.arm(sandbox)
        _, ready = self._lives.feed(sandbox, Event.CREATED)
        for event in ready:
            self._tasks.spawn(self._lives.drive(sandbox, event))

    def _create_failed(self, sandbox: Sandbox, error: BaseException) -> asyncio.Task[None] | None:
        """Undoes what a failed create left; whoever joined it gets the same error."""
        sandbox.reason = str(error) or type(error).__name__
        if isinstance(error, SkerryError):
            sandbox.end_error = type(error)(error.message, **error.fields)
        self._lives.feed(sandbox, Event.CREATE_FAILED)
        if sandbox.instance is None:
            self._admission.release(sandbox.id)
            self._lives.forget(sandbox)
            return None
        # the backend made it, and its agent did not answer
        return self._tasks.spawn(self._lives.delete_quietly(sandbox))


def claim_of(sandbox: Sandbox) -> Claim:
    """Returns what a sandbox asks of the node."""
    spec = sandbox.spec
    return Claim(sandbox.id, sandbox.holder, spec.memory_bytes, spec.pids)


def outlives(spec: SandboxSpec) -> bool:
    """Returns whether no connection owns it, and an embedded node's end does not end it."""
    return spec.detached or spec.job is not None


def unwanted() -> SkerryError:
    """Returns what a create is told whose sandbox was deleted before it was made."""
    return SandboxFailed("it was deleted while it waited to be made")


def _check_wanted(sandbox: Sandbox) -> None:
    if sandbox.deleting:
        raise unwanted()


def _check(spec: SandboxSpec) -> None:
    """Raises InvalidRequest unless the whole spec can be carried out."""
    spec.check()
    for what, value in (("user", spec.user), ("workdir", spec.workdir)):
        if value is None:
            continue
        if not value or "\x00" in value or len(value.encode()) > limits.PATH_BYTES_MAX:
            raise InvalidRequest(f"{what} is empty, too long or holds a NUL")
    if spec.workdir is not None and not spec.workdir.startswith("/"):
        raise InvalidRequest(f"workdir: {spec.workdir[:80]!r} is not absolute")
    if any("\x00" in text for pair in spec.labels.items() for text in pair):
        raise InvalidRequest("labels: a NUL in a name or a value")
