"""Names to addresses: one look-up at a time a name, in threads of its own, briefly remembered."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from skerry.network.addresses import Address

Lookup = Callable[[str], Awaitable[list[str]]]

THREADS_MAX = 16
WITHIN_S = 10.0
REMEMBERED_S = 5.0  # short: what a name means may change, and each connection is checked anew
REMEMBERED_MAX = 1024
AGAIN_S = (0.05, 0.2)  # after "temporary failure", which name servers say under load


class LookupFailed(Exception):
    """The name has no address, or nobody could be asked; the text says which."""


class Resolver:
    """Looks names up. `pinned` names have the operator's addresses and are never asked for."""

    def __init__(
        self,
        lookup: Lookup,
        pinned: Mapping[str, tuple[str, ...]],
        now: Callable[[], float],
    ) -> None:
        self._lookup = lookup
        self._pinned = {
            name: tuple(map(ipaddress.ip_address, texts)) for name, texts in pinned.items()
        }
        self._now = now
        self._known: dict[str, tuple[float, tuple[Address, ...]]] = {}
        self._asking: dict[str, asyncio.Task[tuple[Address, ...]]] = {}

    def is_pinned(self, host: str) -> bool:
        """Returns whether the operator has written the name's addresses."""
        return host in self._pinned

    async def addresses(self, host: str) -> tuple[Address, ...]:
        """Returns at least one address; raises LookupFailed."""
        if host in self._pinned:
            return self._pinned[host]
        known = self._known.get(host)
        if known is not None and known[0] > self._now():
            return known[1]
        asking = self._asking.get(host)
        if asking is None:
            asking = asyncio.get_running_loop().create_task(self._ask(host))
            self._asking[host] = asking
            asking.add_done_callback(lambda task: self._answered(host, task))
        return await asyncio.shield(asking)

    async def close(self) -> None:
        """Gives up what is being looked up."""
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _answered(self, host: str, task: asyncio.Task[tuple[Address, ...]]) -> None:
        self._asking.pop(host, None)
        if task.cancelled() or task.exception() is not None:
            return
        self._known.pop(host, None)
        while len(self._known) >= REMEMBERED_MAX:
            del self._known[next(iter(self._known))]
        self._known[host] = self._now() + REMEMBERED_S, task.result()

    async def _ask(self, host: str) -> tuple[Address, ...]:
        try:
            async with asyncio.timeout(WITHIN_S):
                texts = await self._ask_again(host)
        except TimeoutError:
            raise LookupFailed(f"no answer within {WITHIN_S:g} s") from None
        except (OSError, UnicodeError) as error:
            raise LookupFailed(getattr(error, "strerror", None) or str(error)) from None
        found = []
        for text in texts:
            address = ipaddress.ip_address(text.partition("%")[0])
            if address not in found:
                found.append(address)
        if not found:
            raise LookupFailed("it has no address")
        return tuple(found)

    async def _ask_again(self, host: str) -> list[str]:
        for pause in AGAIN_S:
            try:
                return await self._lookup(host)
            except socket.gaierror as error:
                if error.errno != socket.EAI_AGAIN:
                    raise
            await asyncio.sleep(pause)
        return await self._lookup(host)


class SystemLookup:
    """Asks the host's own resolver. The name is made absolute: no search list is tried."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="skerry-lookup")

    async def __call__(self, host: str) -> list[str]:
        """Returns addresses in the order in which they should be tried; OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _getaddrinfo, host)
        return [str(entry[4][0]) for entry in found]

    def close(self) -> None:
        """Waits for nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _getaddrinfo(host: str) -> list[tuple[int, int, int, str, tuple[str | int, ...]]]:
    return list(socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM))  # type: ignore[arg-type]
