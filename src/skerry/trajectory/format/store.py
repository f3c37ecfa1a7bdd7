"""Where trajectories lie in a layer store, and what writers and readers need of one.

trajectories/NODE/0000000007.seg          bytes of a segment without the zeros at its end
trajectories/NODE/0000000007.idx          what is in it (trajectory/format/index.py)
trajectories/NODE/0000000008.tail/OFFSET  bytes of an open segment from that offset on
trajectories/NODE/owner                   whose the name is (trajectory/shipping/owner.py)
trajectories/blobs/SHA256                 a content, once for all nodes
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

TRAJECTORIES: Final = "trajectories/"
BLOBS: Final = TRAJECTORIES + "blobs/"


def node_prefix(node: str) -> str:
    """Returns below which key everything of a node lies."""
    return f"{TRAJECTORIES}{node}/"


def segment_key(node: str, number: int) -> str:
    """Returns the key of a shipped segment."""
    return f"{node_prefix(node)}{number:010d}.seg"


def index_key(node: str, number: int) -> str:
    """Returns the key of a shipped segment's index."""
    return f"{node_prefix(node)}{number:010d}.idx"


def tail_prefix(node: str, number: int) -> str:
    """Returns below which key the pieces of an open segment lie."""
    return f"{node_prefix(node)}{number:010d}.tail/"


def tail_key(node: str, number: int, offset: int) -> str:
    """Returns the key of a piece of an open segment."""
    return f"{tail_prefix(node, number)}{offset:010d}"


def owner_key(node: str) -> str:
    """Returns the key of what says whose a node's name is."""
    return f"{node_prefix(node)}owner"


class Stored(Protocol):
    """What a store knows of an object."""

    @property
    def size(self) -> int:
        """Its bytes."""

    @property
    def modified(self) -> float:
        """When they were written."""


class Shelf(Protocol):
    """A store as readers need it; `skerry.images.objects.api` says what holds."""

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Returns a small object, or None if it is not there."""

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Returns a part of an object; less only at its end; NotFound if it is not there."""

    def list(self, prefix: str) -> Iterator[tuple[str, Stored]]:
        """Gives the objects below a prefix, in no order."""

    def local_path(self, key: str) -> str | None:
        """Returns the path of the object's file; None if the store has no files."""


class Store(Shelf, Protocol):
    """A store as what ships needs it."""

    def put_file(self, key: str, path: str) -> bool:
        """Stores a local file's bytes; False, changing nothing, if the key is there."""

    def put_bytes(self, key: str, data: bytes, *, replace: bool) -> bool:
        """Stores bytes; False, changing nothing, if the key is there and not `replace`."""

    def stat(self, key: str) -> Stored | None:
        """Returns what is known of an object, or None."""

    def delete(self, key: str) -> None:
        """Removes an object, if it is there."""
