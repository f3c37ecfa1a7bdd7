"""Deadlines of sandboxes: idle timeouts count from the last activity, a ttl from the creation."""

from __future__ import annotations

from collections.abc import Callable

from skerry.node.clock import Clock
from skerry.node.life.sandbox import ENDED, Sandbox
from skerry.node.timers import Timers
from skerry.spec.sandbox import OnIdle, State


class Deadlines:
    """Looks at a sandbox when it may have been idle long enough, and not before.

    Activity only moves a number: a timer that comes too early sets itself again. `stop` and `pause`
    are called when a deadline has passed.
    """

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        *,
        stop: Callable[[Sandbox, str], None],
        pause: Callable[[Sandbox], None],
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._stop = stop
        self._pause = pause

    def arm(self, sandbox: Sandbox) -> None:
        """Sets the sandbox's deadlines: ttl from its creation, idle from its last activity."""
        ttl = sandbox.spec.ttl_s
        if ttl is not None:
            left = max(0.0, sandbox.born + ttl - self._clock.monotonic())
            sandbox.timers.append(
                self._timers.after(left, lambda: self._end_by_time(sandbox, "its ttl is over"))
            )
        if sandbox.spec.idle_timeout_s is not None:
            self._arm_idle(sandbox, sandbox.spec.idle_timeout_s)

    def arm_again(self, sandbox: Sandbox) -> None:
        """Sets them anew, after they were changed."""
        for timer in sandbox.timers:
            timer.cancel()
        sandbox.timers.clear()
        self.arm(sandbox)

    def _arm_idle(self, sandbox: Sandbox, delay_s: float) -> None:
        timer = self._timers.after(delay_s, lambda: self._idle(sandbox))
        sandbox.timers = [other for other in sandbox.timers if other.call is not None]
        sandbox.timers.append(timer)

    def _idle(self, sandbox: Sandbox) -> None:
        """Stops or pauses it if it was idle long enough, else looks again when it may have been."""
        idle = sandbox.spec.idle_timeout_s
        if idle is None or sandbox.gone or sandbox.state in ENDED:
            return
        if sandbox.running or sandbox.busy or sandbox.state is not State.RUNNING:
            self._arm_idle(sandbox, idle)
            return
        left = sandbox.active + idle - self._clock.monotonic()
        if left > 0.001:
            self._arm_idle(sandbox, left)
            return
        if sandbox.spec.on_idle is OnIdle.PAUSE and sandbox.pausable is not None:
            self._arm_idle(sandbox, idle)
            self._pause(sandbox)
            return
        self._end_by_time(sandbox, "it was idle")

    def _end_by_time(self, sandbox: Sandbox, reason: str) -> None:
        if not sandbox.gone and sandbox.state not in ENDED:
            self._stop(sandbox, reason)
