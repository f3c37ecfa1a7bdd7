"""What a rollout needs to be told: who acts on what, and where models are served."""

from __future__ import annotations

import contextlib
from typing import Protocol

import msgspec

from skerry.spec.uplink import Uplink
from skerry.worker.clock import ActClock
from skerry.worker.environment import Environment
from skerry.worker.memory import Memory
from skerry.worker.ports import Sandbox
from skerry.worker.session import Access, Policy


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout to be done."""

    rollout: str
    environment: Environment
    policy: Policy
    variant: str
    index: int
    number: int = 0


class Models(Protocol):
    """Where agents' models are served."""

    uplink: Uplink

    def access(self, plan: Plan, memory: Memory) -> Access:
        """Returns how the agent of the attempt under way reaches its model."""

    def serving(
        self, plan: Plan, memory: Memory, sandbox: Sandbox, clock: ActClock
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Serves the sandbox its model for a block; holds the clock while an answer is owed.

        A Standstill ends the block and not the serving.
        """

    def dropped(self, memory: Memory) -> None:
        """The attempt under way is given up: nobody in it is served any more."""
