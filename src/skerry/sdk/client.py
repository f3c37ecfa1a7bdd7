"""A client of one node."""

from __future__ import annotations

import asyncio
import os
import stat
from typing import Final

from skerry.errors import InvalidRequest, Unavailable
from skerry.sdk.embedded import RUN_DIR, STATE_DIR, OwnerConnection, find_or_start
from skerry.sdk.functions import AsyncFunctions
from skerry.sdk.images import AsyncImages
from skerry.sdk.jobs import AsyncJobs
from skerry.sdk.repeat.choices import Choice
from skerry.sdk.rollout import AsyncRollout
from skerry.sdk.sandboxes import AsyncSandboxes
from skerry.sdk.trajectories import AsyncTrajectories
from skerry.sdk.transport import Transport
from skerry.wire.control import DrainBody, DrainState, NodeUsage
from skerry.wire.http import Health
from skerry.wire.workers import WorkerInfo

ASK_AGAIN_S: Final = 0.2


class AsyncClient:
    """Sandboxes, images and function calls of one node. Use it as an async context manager.

    Without `url` (and without SKERRY_URL in the environment) an embedded node is used: found at
    `run_dir`, or started. Then, and where `url` is that of an embedded node, sandboxes that are not
    `detached` end with this client. Given the `url` of another node it owns nothing: what it leaves
    lives on until somebody removes it, or its `ttl` or `idle_timeout` ends it. With `owns=False` it owns
    nothing on an embedded node either, and does not keep that running: all it makes must be detached, or
    a job's. Where no node answers at `url`, it is asked again for `wait` seconds: one may be starting.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        state_dir: str | None = None,
        run_dir: str | None = None,
        owns: bool = True,
        wait: float = 0.0,
    ) -> None:
        self._owns = owns
        self._wait_s = wait
        explicit = state_dir is not None or run_dir is not None
        self._url = url or (None if explicit else os.environ.get("SKERRY_URL"))
        self._token = token or os.environ.get("SKERRY_TOKEN")
        self._state_dir = state_dir or STATE_DIR
        self._run_dir = run_dir or RUN_DIR
        self._transport: Transport | None = None
        self._owner: OwnerConnection | None = None
        self.sandboxes: AsyncSandboxes
        self.images: AsyncImages
        self.trajectories: AsyncTrajectories
        self.jobs: AsyncJobs
        self.functions: AsyncFunctions

    async def __aenter__(self) -> AsyncClient:
        if self._url is not None:
            transport = _transport_of(self._url, self._token)
        else:
            transport = await find_or_start(self._state_dir, self._run_dir)
        try:
            embedded = self._url is None or (await _health(transport, self._wait_s)).embedded
            if embedded and self._owns:
                self._owner = OwnerConnection(transport)
                await self._owner.open()
        except BaseException:
            await transport.close()
            raise
        self._transport = transport
        self.sandboxes = AsyncSandboxes(transport)
        self.images = AsyncImages(transport, self.sandboxes)
        self.trajectories = AsyncTrajectories(transport)
        self.jobs = AsyncJobs(transport)
        self.functions = AsyncFunctions(transport)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._owner is not None:
            await self._owner.close()
        if self._transport is not None:
            await self._transport.close()

    def __repr__(self) -> str:
        return f"<Client of {self._url or self._run_dir}>"

    def rollout(
        self, key: str, *, on_divergence: str = "stop", on_unknown: Choice = "wait"
    ) -> AsyncRollout:
        """Returns the rollout of that key, to be entered: what is on record of it is not run again.

        Where the harness asks for something else than is on record, "stop" raises Diverged, "branch"
        goes on in a fresh sandbox with the nearest commit before. `on_unknown` is what is done about
        an operation of which nobody can say whether it ran: "wait" joins one that still runs and else
        raises OutcomeUnknown, "rerun" runs it again, "fail" raises at once; or a function that gets
        the Event and returns one of these. InvalidRequest.
        """
        return AsyncRollout(self._open(), key, on_divergence, on_unknown)

    async def health(self) -> Health:
        """Returns the node's own view of itself."""
        return await self._open().call("GET", "/v1/health", Health, repeatable=True)

    async def usage(self, labels: dict[str, str] | None = None) -> NodeUsage:
        """Returns what every live sandbox with these labels uses, and what the host has left."""
        params = [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        return await self._open().call(
            "GET", "/v1/usage", NodeUsage, repeatable=True, params=params
        )

    async def workers(self) -> list[WorkerInfo]:
        """Returns the node's workers, each with its state and its process id on the node's host."""
        return await self._open().call("GET", "/v1/workers", list[WorkerInfo], repeatable=True)

    async def drain(self, *, grace: float | None = None) -> DrainState:
        """The node takes no new sandboxes; what lives after `grace` seconds is stopped, None: never."""
        return await self._open().call(
            "POST", "/v1/node/drain", DrainState, body=DrainBody(grace_s=grace), repeatable=True
        )

    async def undrain(self) -> DrainState:
        """The node takes new sandboxes again."""
        return await self._open().call("DELETE", "/v1/node/drain", DrainState, repeatable=True)

    async def drain_state(self) -> DrainState:
        """Returns how far the node is drained."""
        return await self._open().call("GET", "/v1/node/drain", DrainState, repeatable=True)

    def _open(self) -> Transport:
        if self._transport is None:
            raise RuntimeError("the client is not open: use it in an `async with` block")
        return self._transport


async def _health(transport: Transport, wait_s: float) -> Health:
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    while True:
        try:
            return await transport.call("GET", "/v1/health", Health)
        except Unavailable as error:
            if loop.time() < until:
                await asyncio.sleep(min(ASK_AGAIN_S, max(0.0, until - loop.time())))
                continue
            path = transport.socket_path
            if path is None or "retry_after_s" in error.fields:
                raise
            raise Unavailable(f"{error.message}. {_nobody_at(path)}", **error.fields) from error


def _nobody_at(path: str) -> str:
    """Returns what may be wrong with the path of a socket behind which no node is."""
    inside = os.path.join(path, "node.sock")
    if os.path.exists(inside):
        return f"That is a node's directory: write unix://{inside}"
    try:
        there = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        there = True  # it is not there: the same as where nobody listens any more
    if not there:
        return "That is no socket: name the file node.sock in the node's run directory"
    return (
        "No node runs there: an embedded one ends with its last client. Start one that stays "
        "(skerry up), or name none (no url, no SKERRY_URL): then one is found, or started"
    )


def _transport_of(url: str, token: str | None) -> Transport:
    if isinstance(url, str) and url.startswith("unix://"):
        path = url.removeprefix("unix://")
        if not path.startswith("/") or "\0" in path:
            raise InvalidRequest(f"{url!r}: no absolute path: write unix:///PATH")
        return Transport("http://node", socket_path=path, token=token)
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"{url!r} is no node's address: write http://HOST:PORT or unix:///PATH"
        )
    return Transport(url, token=token)


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    state_dir: str | None = None,
    run_dir: str | None = None,
    wait: float = 0.0,
) -> AsyncClient:
    """Returns a client, to be entered: `async with skerry.aio.connect() as client`.

    `url` is http://HOST:PORT or unix:///PATH; see AsyncClient for what happens without one. A node that
    does not answer there is asked again for `wait` seconds.
    """
    return AsyncClient(url, token, state_dir=state_dir, run_dir=run_dir, wait=wait)
