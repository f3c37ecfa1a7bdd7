"""Function containers made, prepared and destroyed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, cast

from skerry.backends.api import Backend, Celled, CreateRequest
from skerry.backends.function.member import Member, Stage
from skerry.backends.shared import binaries
from skerry.errors import CallerError, InvalidRequest, SandboxError, SkerryError, Unavailable
from skerry.guest.channel import same_error
from skerry.guest.client import GuestClient
from skerry.node.admission.holders import Holder
from skerry.node.admission.shortage import Claim
from skerry.node.functions.container import CONNECT_S, CelledInstance, Container
from skerry.node.functions.functionpool import FunctionPool
from skerry.node.functions.options import FunctionsConfig
from skerry.node.functions.turns import Turns
from skerry.node.images import Environment as Composed
from skerry.node.parts import Parts
from skerry.spec import limits
from skerry.spec.device import DeviceNode
from skerry.spec.function_limits import COMPILE_LIMITS, PROCESSES_MAX, CallLimits
from skerry.spec.layers import MountMode

DESTROY_AGAIN_S: Final = (0.5, 2.0, 10.0, 30.0)
MADE_FOR: Final = Holder("", None, "functions")  # what a refusal calls their holder
LIBRARY: Final = "skerry-zygote.so"

log = logging.getLogger("skerry.node")


class Making:
    """Containers for pools. `wake` is called when something has changed that a plan depends on."""

    def __init__(
        self,
        parts: Parts,
        turns: Turns,
        config: FunctionsConfig,
        backend: Backend,
        *,
        devices: Mapping[str, tuple[DeviceNode, ...]],
        wake: Callable[[], None],
    ) -> None:
        self.made = self.lost = 0
        self._parts = parts
        self._turns = turns
        self._config = config
        self._backend = backend
        self._devices = devices
        self._wake = wake
        self._now = parts.clock.monotonic
        self._library: bytes | None = None

    def begin(self, pool: FunctionPool) -> None:
        """Makes one more container, beside."""
        member = pool.policy.begin(self._parts.identity.sandbox_id(), self._now())
        self._parts.tasks.spawn(self._make(pool, member))

    def end(self, pool: FunctionPool, member: Member) -> None:
        """Destroys one that serves no call any more, beside; idempotent."""
        container = pool.containers.get(member.name)
        if container is not None and not container.ending:
            container.ending = True
            self._parts.tasks.spawn(self._ended(pool, member))

    def start_zygotes(self, pool: FunctionPool) -> None:
        """Starts an interpreter where a container was made before anyone called Python in it."""
        for container in pool.containers.values():
            if not container.zygote_asked and container.member.stage is Stage.READY:
                container.zygote_asked = True
                self._parts.tasks.spawn(self._zygote_late(pool, container))

    def give_up(self, pool: FunctionPool, container: Container, why: str) -> None:
        """Ends a container that does not do what it should; what runs there is lost."""
        log.warning("function container %s is given up: %s", container.name, why)
        self.lost += 1
        pool.failed += 1
        self._parts.tasks.spawn(container.give_up(Unavailable(why)))
        self._wake()

    # -- making -----------------------------------------------------------------------------------

    async def _make(self, pool: FunctionPool, member: Member) -> None:
        """Makes a container and prepares it; else nothing of it is left, and who waits may be told."""
        within_s = self._config.start_within_s
        try:
            async with asyncio.timeout(within_s):
                await self._prepare(pool, member)
        except TimeoutError:
            why = f"a container was not ready within {within_s:g} s"
            await self._not_made(pool, member, Unavailable(why, retry_after_s=5.0))
        except SkerryError as error:
            await self._not_made(pool, member, error)
        except BaseException:
            await asyncio.shield(self._destroy(pool, member))
            raise
        else:
            pool.error = None
            self.made += 1
            pool.policy.made(member, self._now())
            self._turns.look_again(pool.policy)
        finally:
            pool.changed()
            self._wake()

    async def _prepare(self, pool: FunctionPool, member: Member) -> None:
        images, spec = self._parts.images, pool.sandbox_spec
        changes, now = images.changes, self._now()
        await images.until_there(spec)
        composed = await images.plan(spec)
        pool.made_of(composed.digests, "its image is another one now")
        pool.changes, pool.checked = changes, now
        mounted = tuple(one.digest for one in composed.plan.mounts())
        self._parts.sandboxes.held[member.name] = (*composed.digests, *mounted)
        self._parts.admission.ask(Claim(member.name, MADE_FOR))
        container = await self._create(pool, member, composed)
        first, *_ = [container.renew(cell) for cell in range(member.marks.cells)]
        if first is not None:
            await first  # the others follow while calls run already
        if pool.zygotes:
            container.zygote_asked = True
            try:
                await self._zygote(pool, container)
            except InvalidRequest:
                if pool.needed:
                    raise
                pool.zygotes = False  # it has none, and serves other kinds
        if not container.alive:
            raise Unavailable("it was lost while it was prepared")

    async def _create(self, pool: FunctionPool, member: Member, composed: Composed) -> Container:
        if any(layer.mode is MountMode.VERIFIED for layer in composed.plan.layers):
            if self._parts.blobs is None:
                raise Unavailable("the backend cannot read layers on demand")
            await self._parts.blobs.ready()
        nodes = () if pool.key.device is None else self._devices[pool.key.device]
        instance = await self._backend.create(
            request_of(member, composed, self._config.memory_max, nodes)
        )
        if not isinstance(instance, Celled):
            await asyncio.shield(instance.destroy())
            raise Unavailable("the backend makes no function containers")
        try:
            client = await GuestClient.connect(
                instance.open_channel, nonce=os.urandom(16), timeout=CONNECT_S
            )
        except BaseException:
            await asyncio.shield(instance.destroy())
            raise
        container = pool.containers[member.name] = Container(
            member,
            cast("CelledInstance", instance),
            client,
            disk_bytes=CallLimits().disk_bytes,
            now=self._now,
            on_cell=partial(self._cell, pool),
        )
        client.lost.add_done_callback(lambda lost: self._lost(pool, container, lost.result()))
        return container

    async def _not_made(self, pool: FunctionPool, member: Member, error: SkerryError) -> None:
        await self._destroy(pool, member)
        pool.error = error
        pool.failed += 1
        hopeless = pool.policy.failed(member, self._now())
        theirs = isinstance(error, CallerError | SandboxError)
        if not theirs:
            log.warning("a function container was not made: %s", error.message)
        if hopeless or (theirs and not pool.policy.living):
            self._turns.refuse(pool.policy, lambda: same_error(error))

    # -- zygotes ----------------------------------------------------------------------------------

    async def _zygote_late(self, pool: FunctionPool, container: Container) -> None:
        try:
            async with asyncio.timeout(self._config.start_within_s):
                await self._zygote(pool, container)
        except TimeoutError:
            self._no_zygote(pool, container, Unavailable("the interpreter did not start in time"))
        except SkerryError as error:
            self._no_zygote(pool, container, error)
        finally:
            pool.changed()
            self._wake()

    def _no_zygote(self, pool: FunctionPool, container: Container, error: SkerryError) -> None:
        pool.error = error
        pool.failed += 1
        if isinstance(error, CallerError | SandboxError):
            # It goes on with what needs no Python; who asks for that again is told again.
            container.zygote_asked = False
            pool.zygotes = pool.needed = False
            self._turns.refuse(pool.policy, lambda: same_error(error), zygote=True)
        else:
            container.member.retire(f"it has no interpreter: {error.message}")

    async def _zygote(self, pool: FunctionPool, container: Container) -> None:
        if self._library is None:
            self._library = binaries.find(LIBRARY).read_bytes()
        await container.start_zygote(pool.environment, self._library)
        container.member.zygote = True
        self._parts.tasks.spawn(self._zygote_ends(container))
        self._turns.look_again(pool.policy)

    async def _zygote_ends(self, container: Container) -> None:
        """A zygote that ends takes its container with it; the calls that run there have ended."""
        if container.zygote is None:
            return
        try:
            await container.zygote.running.wait()
        except SkerryError:
            return  # the connection is lost: that is told elsewhere
        member = container.member
        if member.stage is not Stage.RETIRING:
            log.warning("%s: its interpreter has ended", container.name)
            self.lost += 1
        member.zygote = False
        member.retire("its interpreter has ended")
        self._wake()

    # -- what happens to them ---------------------------------------------------------------------

    def _cell(
        self, pool: FunctionPool, container: Container, cell: int, error: SkerryError | None
    ) -> None:
        """A cell was made, or could not be."""
        member = container.member
        if error is None:
            if cell not in member.busy:
                member.ready(cell)
                self._turns.look_again(pool.policy)
            return
        if container.alive:
            log.warning("%s: cell %d: %s", container.name, cell, error.message)
        member.broke(cell, error.message)
        if member.stage is Stage.RETIRING:
            self._wake()

    def _lost(self, pool: FunctionPool, container: Container, error: SkerryError) -> None:
        """Its connection has ended."""
        if container.error is None:
            container.error = error
            if container.member.stage is not Stage.RETIRING:
                log.warning("function container %s is lost: %s", container.name, error.message)
                self.lost += 1
                pool.failed += 1
            container.member.retire(error.message)
        self._wake()

    async def _ended(self, pool: FunctionPool, member: Member) -> None:
        log.info("function container %s ends: %s", member.name, member.why)
        try:
            await asyncio.shield(self._destroy(pool, member))
        finally:
            pool.policy.gone(member)
            pool.changed()
            self._wake()

    async def _destroy(self, pool: FunctionPool, member: Member) -> None:
        """Leaves nothing of it; asks again while the backend cannot."""
        container = pool.containers.get(member.name)
        if container is not None:
            await container.give_up(Unavailable("its container is ending"))
            for pause in (*DESTROY_AGAIN_S, None):
                try:
                    await container.instance.destroy()
                    break
                except SkerryError as error:
                    log.warning("%s is not destroyed yet: %s", member.name, error.message)
                    if pause is None:
                        pool.stuck.add(member.name)
                        break  # the sweep of the next start has it
                    await asyncio.sleep(pause)
            pool.containers.pop(member.name, None)
        self._parts.admission.release(member.name, lived=False)
        self._parts.sandboxes.held.pop(member.name, None)


def request_of(
    member: Member,
    composed: Composed,
    memory_max: int,
    devices: tuple[DeviceNode, ...] = (),
) -> CreateRequest:
    """Returns what a container is made from. Each of its cells has limits for the call in it.

    Memory and processes are bounded as a whole, too: the modules that a zygote imports are in no cell.
    `memory_max` is what all calls of the node may use together.
    """
    return CreateRequest(
        instance_id=member.name,
        rootfs=composed.plan,
        hostname="skerry",
        cpu=float(os.cpu_count() or 1),
        memory_bytes=memory_max,
        pids=min(limits.PIDS_MAX, PROCESSES_MAX + member.marks.cells * COMPILE_LIMITS.processes),
        nofile=4096,
        shm_bytes=limits.MIB,
        env=composed.config.env,
        cells=member.marks.cells,
        devices=devices,
    )
