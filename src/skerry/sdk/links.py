"""What connects one event loop to one node."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable

import aiohttp
from yarl import URL

from skerry.sdk.dial import CONNECT_TIMEOUT_S, Dialer, kept_alive
from skerry.sdk.pool import Pool

READ_BYTES = 1 << 20  # of a streamed answer are held, at most twice that


class Links:
    """Connections of our own for whole requests, and an aiohttp session for all else, made at need.

    They are closed when the running loop ends, and `ended` is called. Loops end their asynchronous
    generators before they close (asyncio.run does); no other call tells of a loop's end.
    """

    def __init__(self, url: URL, socket_path: str | None, ended: Callable[[], object]) -> None:
        self.pool = Pool(
            Dialer(
                url.host or "", url.port or 0, socket_path=socket_path, tls=url.scheme == "https"
            )
        )
        self._socket_path = socket_path
        self._session: aiohttp.ClientSession | None = None
        self._keeper = self._keep(ended)
        with contextlib.suppress(StopIteration):
            self._keeper.__anext__().send(None)  # from here on the loop knows it

    @property
    def session(self) -> aiohttp.ClientSession:
        """Returns the aiohttp session."""
        if self._session is None:
            # No limit: a stream holds its connection for as long as it runs, and a hidden limit
            # would stall the hundred-and-first one.
            connector: aiohttp.BaseConnector
            if self._socket_path is not None:
                connector = aiohttp.UnixConnector(path=self._socket_path, limit=0)
            else:
                connector = aiohttp.TCPConnector(
                    limit=0, ttl_dns_cache=30, socket_factory=kept_alive
                )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),  # a node sets none; looking costs each request
                auto_decompress=False,
                read_bufsize=READ_BYTES,
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
            )
        return self._session

    async def close(self) -> None:
        """Closes every connection."""
        await self.pool.close()
        if self._session is not None:
            await self._session.close()

    async def _keep(self, ended: Callable[[], object]) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            ended()
            await self.close()
