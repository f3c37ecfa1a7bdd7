"""The connection to one sandbox's agent: made again when it is lost, ended when the sandbox is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from skerry.backends.api import Instance
from skerry.errors import Conflict, SandboxFailed, SkerryError, Unavailable
from skerry.guest.channel import same_error
from skerry.guest.client import GuestClient
from skerry.guest.forward import Listener, OnConnection
from skerry.guest.output import MemorySink
from skerry.node.clock import Clock, sleep
from skerry.wire.guest import KnownOperation

CONNECT_S = 10.0  # for one connection, to the agent's WELCOME
RECONNECT_S = 30.0  # an agent that cannot be reached for that long is given up
PING_S = 5.0
HOLD_S = 2.0  # an agent that takes longer to say that it has heard is not waited for
# Before each try. The first is what the death of PID 1 needs to be told from a lost connection.
LOSSES_A_DELAY = 4  # within a second: an agent that drops every connection is asked less often
_DELAYS_S = (0.02, 0.05, 0.2, 0.5, 1.0, 2.0)

log = logging.getLogger("skerry.node")


@dataclass(slots=True, eq=False)
class Port:
    """A port inside that is listened on. Invariant: `listener` is of the client `on`, or both None."""

    number: int
    serve: OnConnection
    on: GuestClient | None = None
    listener: Listener | None = None


class Link:
    """Hands out a connected client, however often the connection is lost.

    `on_death(reason)` is called at most once, from the event loop: the instance has ended by
    itself, its agent broke the protocol, or cannot be reached. Whoever waits in `ready` then gets
    the error that `end` is given. There is no task a sandbox: watching for the death of PID 1
    begins when the channel is lost, and that is when it dies. What the agent still knows when the
    connection was made again, and whose handle is not among the `wanted`, is let go of.
    """

    def __init__(
        self,
        instance: Instance,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_death: Callable[[str], None],
        new_handle: Callable[[], int],
        *,
        wanted: Callable[[], Collection[int]],
        held: bool = False,
    ) -> None:
        self.over: asyncio.Future[SkerryError] = asyncio.get_running_loop().create_future()
        self.new_handle = new_handle
        self._wanted = wanted
        self._ports: list[Port] = []
        self._instance = instance
        self._clock = clock
        self._spawn = spawn
        self._on_death = on_death
        self._client: GuestClient | None = None
        self._error: SkerryError | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._checking = False
        self._losses: list[float] = []
        self._held = held

    async def connect(self, timeout_s: float = CONNECT_S) -> GuestClient:
        """Returns a new client, once it listens on every port that is served.

        Unavailable or SandboxFailed if the agent does not answer well.
        """
        client = await GuestClient.connect(
            self._instance.open_channel, nonce=os.urandom(16), timeout=timeout_s
        )
        try:
            for port in tuple(self._ports):
                await self._listen_again(client, port)
        except BaseException:
            await client.close()
            raise
        if self._error is not None:
            await client.close()
            raise same_error(self._error)
        self._client = client
        if client.generation > 1:  # somebody spoke to it before: it may believe something else
            with contextlib.suppress(SkerryError):  # then the connection is lost, and made again
                client.say_held(held=self._held)
        client.lost.add_done_callback(self._lost)
        self._wake()
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

    def add(self, number: int, serve: OnConnection) -> Port:
        """Serves a port inside with every connection that is made from now on, until `unlisten`."""
        if any(port.number == number for port in self._ports):
            raise Conflict(f"port {number} is served already")
        port = Port(number, serve)
        self._ports.append(port)
        return port

    async def listen(self, number: int, serve: OnConnection) -> Port:
        """Serves a port inside from now on, over every loss of the connection, until `unlisten`.

        Raises Conflict if the port is taken inside, and the error of the end.
        """
        port = self.add(number, serve)
        try:
            while True:
                client = await self.ready()
                if port.on is client:
                    break
                try:
                    await self._listen(client, port)
                    break
                except SkerryError:
                    if not client.lost.done():
                        raise
        except BaseException:
            self.unlisten(port)
            raise
        return port

    def unlisten(self, port: Port) -> None:
        """Serves it no more; connections that are open go on. Idempotent."""
        if port in self._ports:
            self._ports.remove(port)
        if port.listener is not None:
            port.listener.close()
            port.listener = port.on = None

    @asynccontextmanager
    async def listening(self, number: int, serve: OnConnection) -> AsyncIterator[None]:
        """Serves a port inside while the block lasts; raises as `listen` does."""
        port = await self.listen(number, serve)
        try:
            yield
        finally:
            self.unlisten(port)

    async def _listen(self, client: GuestClient, port: Port) -> None:
        async with asyncio.timeout(CONNECT_S):
            listener = await client.listen(port.number, port.serve, handle=self.new_handle())
        if port not in self._ports:
            listener.close()
            return
        port.on, port.listener = client, listener

    async def _listen_again(self, client: GuestClient, port: Port) -> None:
        """A new connection serves the port; Unavailable if that was lost meanwhile."""
        try:
            await self._listen(client, port)
        except TimeoutError:
            raise Unavailable(f"the guest agent did not listen within {CONNECT_S:g} s") from None
        except Conflict as error:
            log.warning("port %d inside is not served any more: %s", port.number, error.message)

    async def hold(self, *, held: bool) -> None:
        """No deadline of a command passes inside from here on, until it is said otherwise.

        Returns once the agent knows, or will know as soon as it can be reached: what is wrong with
        the connection is found out elsewhere.
        """
        self._held = held
        client = self._client
        if client is not None and not client.lost.done():
            with contextlib.suppress(SkerryError, TimeoutError):
                async with asyncio.timeout(HOLD_S):
                    await client.hold(held=held)

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
            self.over.set_result(error)
        if self._client is not None:
            await self._client.close(same_error(self._error))
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
        except Exception as error:
            # Nobody else connects again: whoever waits would wait for ever.
            log.exception("a connection cannot be made again")
            self._died(f"its agent cannot be reached: {error}")
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
            client = await self.connect()
        except SandboxFailed as error:
            self._died(error.message)
            return True
        except SkerryError as error:
            if self._clock.monotonic() - began < RECONNECT_S:
                return False
            self._died(f"its agent cannot be reached: {error.message}")
            return True
        wanted = self._wanted()
        for operation in client.live:  # its ACK was lost, or its end would be nobody's business
            if operation.handle not in wanted:
                let_go(client, operation)
        return True

    def _died(self, reason: str) -> None:
        if self._error is None:
            self._on_death(reason)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def let_go(client: GuestClient, operation: KnownOperation) -> None:
    """Ends an operation that nobody asks for any more, and lets the agent forget it."""
    try:
        if operation.done:
            client.acknowledge(operation.handle)
        else:
            client.attach(operation.handle, operation.op_id, MemorySink(0), 0, 0).abandon()
    except SkerryError as error:
        log.debug("an operation inside was not ended: %s", error)


def _how(death: asyncio.Future[Any]) -> str:
    """Returns in words how PID 1 ended."""
    if death.cancelled() or death.exception() is not None:
        return "its first process cannot be watched any more"
    end = death.result()
    if end.signal is not None:
        return f"its first process was killed by signal {end.signal}"
    return f"its first process ended with status {end.status}"
