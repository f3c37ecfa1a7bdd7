"""The pool of one environment as it is: its containers, what they are made of, why one failed."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from skerry.backends.function.member import Stage
from skerry.backends.function.pool import Pool
from skerry.errors import SkerryError
from skerry.node.functions.container import Container
from skerry.spec.function import Environment, Isolation
from skerry.spec.sandbox import SandboxSpec


class PoolKey(NamedTuple):
    """What the calls of one pool have in common."""

    environment: str  # its key
    isolation: Isolation
    device: str | None = None


class FunctionPool:
    """The containers of one key. `policy` says what shall be; this is what is.

    Invariant: a container here has a member in the policy, or is being destroyed.
    """

    def __init__(self, key: PoolKey, environment: Environment, policy: Pool) -> None:
        self.key = key
        self.environment = environment
        self.policy = policy
        self.containers: dict[str, Container] = {}
        self.zygotes = False  # containers are to have one
        self.needed = False  # a Python call was asked for, or modules were named
        self.error: SkerryError | None = None  # why the last container did not start
        self.failed = 0
        self.digests: tuple[str, ...] = ()  # of what its containers are made of now
        self.checked = float("-inf")  # when that was looked up
        self.changes = -1  # of the images, as of then
        self.looking: asyncio.Task[None] | None = None
        self.stuck: set[str] = set()  # containers that could not be destroyed
        self.moved = asyncio.Event()  # something of it has changed; whoever waits clears it

    @property
    def sandbox_spec(self) -> SandboxSpec:
        """What its layers are looked up by."""
        return SandboxSpec(image=self.environment.image, layers=self.environment.layers)

    def of_stage(self, stage: Stage) -> int:
        """Returns how many containers are that far."""
        return sum(one.stage is stage for one in self.policy.members.values())

    def ready(self) -> int:
        """Returns how many containers take calls of every kind that was asked for."""
        return sum(
            one.stage is Stage.READY and (one.zygote or not self.zygotes)
            for one in self.policy.members.values()
        )

    async def empty(self, container: str, made: asyncio.Future[None] | None) -> None:
        """Returns once nothing can be in a cell any more that a call had.

        It was made anew, or dropped; or its container, which is given up if neither works, is gone.
        Of one that cannot be destroyed it does not return: the next start of the node sweeps it.
        """
        if made is not None:
            await asyncio.wait((made,))
            if not made.cancelled() and made.exception() is None:
                return
        member = self.policy.members.get(container)
        if member is not None:
            member.retire("a cell of it could not be emptied")
        while container in self.policy.members or container in self.stuck:
            self.moved.clear()
            await self.moved.wait()

    def made_of(self, digests: tuple[str, ...], why: str) -> None:
        """New containers are of these layers; those that are of others get no further call."""
        if self.digests and self.digests != digests:
            for container in self.containers.values():
                container.member.retire(why)
        self.digests = digests

    def changed(self) -> None:
        """Wakes who waits for a change."""
        self.moved.set()
