"""The node that the tools talk to, as a user's would be: a process with a socket, and an image.

Its store is kept between runs, because the image takes a minute to make.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator

from interop.environments import CACHE
from live_node import LiveNode
from skerry.sdk.sync import connect

IMAGE = "interop/base"
# What agents' tools expect of a machine.
PACKAGES = (
    *("python3", "python3-pip", "python3-pytest", "python-is-python3"),
    *("adduser", "ca-certificates", "curl", "git", "procps", "tmux"),
)


@contextlib.contextmanager
def node(*, census: bool = True) -> Iterator[str]:
    """Runs one for a block and yields its address; AssertionError if anything is left."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "store.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        live = LiveNode(str(CACHE / "store"))
        live.start()
        try:
            with connect(live.url) as client:
                client.images.debian(IMAGE, "bookworm", PACKAGES)
            yield live.url
        finally:
            left = live.stop()
        assert not (census and left), left
