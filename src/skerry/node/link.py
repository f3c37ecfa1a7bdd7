"""The connection to one sandbox's agent: made again when it is lost, ended when the sandbox is."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any

from skerry.backends.api import Instance
from skerry.errors import SandboxFailed, SkerryError, Unavailable
from skerry.guest.channel import same_error
from skerry.guest.client import GuestClient
from skerry.node.clock import Clock, sleep

CONNECT_S = 10.0  # for one connection, to the agent's WELCOME
RECONNECT_S = 30.0  # an agent that cannot be reached for that long is given up
PING_S = 5.0
# Before each try. The first is what the death of PID 1 needs to be told from a lost connection.
LOSSES_A_DELAY = 4  # within a second: an agent that drops every connection is asked less often
_DELAYS_S = (0.02, 0.05, 0.2, 0.5, 1.0, 2.0)


class Link:
    """Hands out a connected client, however often the connection is lost.

    `on_death(reason)` is called at most once, from the event loop: the instance has ended by
    itself, its agent broke the protocol, or cannot be reached. Whoever waits in `ready` then gets
    the error that `end` is given. There is no task a sandbox: watching for the death of PID 1
    begins when the channel is lost, and that is when it dies.
    """

    def __init__(
        self,
        instance: Instance,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_death: Callable[[str], None],
    ) -> None:
        self._instance = instance
        self._clock = clock
        self._spawn = spawn
        self._on_death = on_death
        self._client: GuestClient | None = None
        self._error: SkerryError | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._checking = False
        self._losses: list[float] = []

    async def connect(self, timeout_s: float = CONNECT_S) -> GuestClient:
        """Returns a new client; Unavailable or SandboxFailed if the agent does not answer well."""
        client = await GuestClient.connect(
            self._instance.open_channel, nonce=os.urandom(16), timeout=timeout_s
        )
        if self._error is not None:
            await client.close()
            raise same_error(self._error)
        self._client = client
        client.lost.add_done_callback(self._lost)
        return client

    async def ready(self) -> GuestClient:
        """Returns the client, connected; raises the error of the end."""
        while True:
            if self._error is not None:
                raise same_error(self._error)
            client = self._client
            if client is not None and not client.lost.done():
                return client
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def check(self) -> None:
        """Pings the agent; if it does not answer in time, the connection is made again."""
        client = self._client
        if self._checking or client is None or client.lost.done():
            return
        self._checking = True
        ping = asyncio.ensure_future(client.ping())
        pause = asyncio.ensure_future(sleep(self._clock, PING_S))
        try:
            await asyncio.wait((ping, pause), return_when=asyncio.FIRST_COMPLETED)
            if not ping.done():
                await client.close()
        finally:
            self._checking = False
            pause.cancel()
            ping.cancel()
            with contextlib.suppress(asyncio.CancelledError, SkerryError):
                await ping

    async def end(self, error: SkerryError) -> None:
        """Closes the connection for good; whoever waits gets the error. Only the first counts."""
        if self._error is None:
            self._error = error
        if self._client is not None:
            await self._client.close()
        self._wake()

    def _lost(self, lost: asyncio.Future[SkerryError]) -> None:
        if self._error is not None or lost.cancelled():
            return
        error = lost.result()
        if isinstance(error, Unavailable):
            self._spawn(self._mend())
        else:
            self._on_death(error.message)

    async def _mend(self) -> None:
        """Connects again, or finds out that there is nothing left to connect to."""
        death = asyncio.ensure_future(self._instance.wait())
        began = self._clock.monotonic()
        tries = self._recent_losses(began) // LOSSES_A_DELAY
        try:
            while self._error is None:
                pause = asyncio.ensure_future(
                    sleep(self._clock, _DELAYS_S[min(tries, len(_DELAYS_S) - 1)])
                )
                tries += 1
                try:
                    await asyncio.wait((death, pause), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    pause.cancel()
                if death.done():
                    self._died(_how(death))
                    return
                if await self._try(began):
                    return
        finally:
            death.cancel()
            with contextlib.suppress(asyncio.CancelledError, SkerryError):
                await death

    def _recent_losses(self, now: float) -> int:
        """Returns how often the connection was lost within the last second; this counts as one."""
        self._losses = [lost for lost in self._losses if now - lost < 1.0]
        self._losses.append(now)
        return len(self._losses)

    async def _try(self, began: float) -> bool:
        """Returns whether the question is settled: connected again, or given up."""
        try:
            await self.connect()
        except SandboxFailed as error:
            self._died(error.message)
            return True
        except SkerryError as error:
            if self._clock.monotonic() - began < RECONNECT_S:
                return False
            self._died(f"its agent cannot be reached: {error.message}")
            return True
        self._wake()
        return True

    def _died(self, reason: str) -> None:
        if self._error is None:
            self._on_death(reason)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _how(death: asyncio.Future[Any]) -> str:
    """Returns in words how PID 1 ended."""
    if death.cancelled() or death.exception() is not None:
        return "its first process cannot be watched any more"
    end = death.result()
    if end.signal is not None:
        return f"its first process was killed by signal {end.signal}"
    return f"its first process ended with status {end.status}"
