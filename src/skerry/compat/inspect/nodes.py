"""Clients of nodes, shared by the tasks of one event loop, and what they have made."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from skerry.aio import Client, Sandbox, connect
from skerry.compat.inspect.config import Build, Setup, Wanted
from skerry.compat.inspect.lease import Lease
from skerry.errors import NotFound, SkerryError
from skerry.sdk.bases import ImageSources
from skerry.spec.limits import LABEL_BYTES_MAX
from skerry.spec.sandbox import IMAGE_DEFAULT

HARNESS = {"harness": "inspect"}
TOLD_MAX = 10
logger = logging.getLogger(__name__)


def mine() -> dict[str, str]:
    """Returns the labels of sandboxes that this user's evaluations on this machine have made."""
    return HARNESS | {"by": f"{getpass.getuser()}@{socket.gethostname()}"[:LABEL_BYTES_MAX]}


class Node:
    """A node as the evaluations of one event loop use it. `made` are sandboxes that live."""

    def __init__(self, url: str | None, token: str | None) -> None:
        self.users = 0  # configurations that Inspect has started, and not yet ended
        self.lease = Lease()
        self.made: dict[str, str] = {}  # by id; which sample each is of
        self._url = url or os.environ.get("SKERRY_URL")
        self._client = connect(url, token)
        self._opened = False
        self._opening, self._turn = asyncio.Lock(), asyncio.Lock()
        self._found: dict[str, tuple[str, ...]] = {}  # by what was asked for: names with digests

    async def client(self) -> Client:
        """Returns the client, open."""
        async with self._opening:
            if not self._opened:
                await self._client.__aenter__()
                self._opened = True
        return self._client

    async def close(self) -> None:
        """Nothing is asked afterwards; an embedded node ends with its last client."""
        await self.lease.end()
        if self._opened:
            await self._client.__aexit__()

    async def prepare(self, setup: Setup) -> None:
        """Returns when what each sandbox is made of is there: found, fetched or built."""
        for one in setup.wanted:
            await self._made_of(one, setup.sources)

    async def make(self, one: Wanted, setup: Setup, labels: dict[str, str], sample: str) -> Sandbox:
        """Returns a running sandbox, once there is room; a call that is cancelled leaves none."""
        client = await self.client()
        options = one.options | await self._made_of(one, setup.sources)
        options["labels"] = (options.get("labels") or {}) | labels | {"sandbox": one.name}
        leased = not {"ttl", "idle_timeout"} & options.keys()  # else the task says how long
        if leased:
            options["ttl"] = setup.lease
        sandbox = await client.sandboxes.create(one.backend, wait=setup.wait, **options)
        self.made[sandbox.id] = sample
        if leased:
            self.lease.hold(sandbox, setup.lease)
        return sandbox

    async def _made_of(self, one: Wanted, sources: ImageSources) -> dict[str, Any]:
        """Returns the options that say so, by digests: all samples of a task have the same."""
        if one.options.get("restore") is not None:
            return {}
        name = one.options.get("image", IMAGE_DEFAULT)
        async with self._turn:  # each is fetched or built once
            key = repr((one.build or name, sources))
            if key not in self._found:
                self._found[key] = (
                    await self._base(name, sources)
                    if one.build is None
                    else await self._built(one.build, sources)
                )
        base, *above = self._found[key]
        layers = (*above, *one.options.get("layers", ()))
        return {"image": base} | ({"layers": layers} if layers else {})

    async def _base(self, name: str, sources: ImageSources) -> tuple[str, ...]:
        client = await self.client()
        return ((await client.images.find(name, sources, on_log=logger.info)).pinned,)

    async def _built(self, build: Build, sources: ImageSources) -> tuple[str, ...]:
        """Returns the base of a recipe and the layer of what its steps made."""
        client = await self.client()
        options = dict(build.options)
        options["args"] = dict(options.get("args", ())) or None
        made = await client.images.build_recipe(
            _name(build),
            build.dockerfile.read_text(errors="surrogateescape"),
            context=build.context,
            sources=sources,
            on_log=logger.info,
            **options,
        )
        return (made.recipe["base"], made.pinned)

    async def remove(self, ids: Iterable[str]) -> str:
        """Destroys sandboxes, and returns why some could not be reached: those stay in `made`."""
        why = ""
        for sandbox in list(ids):
            self.lease.let_go(sandbox)
            try:
                await (await self.client()).sandboxes.destroy_many([sandbox])
            except NotFound:
                pass
            except SkerryError as error:
                why = error.message
                continue
            self.made.pop(sandbox, None)
        return why

    async def remove_all(self) -> None:
        """Destroys what is left of `made`; a warning tells what could not be reached."""
        if why := await self.remove(self.made):
            logger.warning(
                "%d sandboxes could not be removed, and end by themselves if the node lives (%s): %s",
                len(self.made),
                ", ".join(list(self.made)[:TOLD_MAX])
                + (", ..." if len(self.made) > TOLD_MAX else ""),
                why,
            )

    def command(self, sandbox: str, user: str | None, workdir: str | None) -> str:
        """Returns a shell line that opens a terminal in a sandbox. It holds no token."""
        words = ["env", f"SKERRY_URL={self._url}"] if self._url else []
        words += [_program(), "shell", sandbox]
        words += ["--workdir", workdir] if workdir else []
        words += ["--user", user] if user else []
        return shlex.join(words)


def _program() -> str:
    if shutil.which("skerry"):
        return "skerry"
    beside = Path(sys.executable).with_name("skerry")
    return str(beside) if beside.exists() else "skerry"


def _name(build: Build) -> str:
    place = f"{socket.gethostname()} {build.dockerfile} {build.context} {build.options}"
    return f"workspace/inspect-{sha256(place.encode()).hexdigest()[:24]}"


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str | None, str | None], Node]] = (
    WeakKeyDictionary()
)


def node_of(setup: Setup) -> Node:
    """Returns the running loop's own view of the node that a task names."""
    nodes = _loops.setdefault(asyncio.get_running_loop(), {})
    key = (setup.url, setup.token)
    return nodes.get(key) or nodes.setdefault(key, Node(*key))


async def leave(node: Node) -> None:
    """Closes it; who asks for it again gets another."""
    nodes = _loops.get(asyncio.get_running_loop(), {})
    for key in [key for key, one in nodes.items() if one is node]:
        del nodes[key]
    with contextlib.suppress(SkerryError):
        await node.close()
