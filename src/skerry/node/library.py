"""What the node needs of the layers' library: the seam that its tests replace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

from skerry.backends.api import Upper
from skerry.images.commits.packing import Apart
from skerry.spec.files import Change
from skerry.spec.layers import LayerCheck, LayerManifest, RecordsCheck, RootfsPlan

Log = Callable[[str], None]


class Reader(Protocol):
    """What an import reads from, in a thread."""

    def read(self, size: int = -1, /) -> bytes:
        """Returns at most that many bytes; b"" at the end."""


class Library(Protocol):
    """What the node needs of `skerry.images.library.ImageLibrary`; every call may block."""

    def resolve(self, names: Sequence[str]) -> tuple[LayerManifest, ...]:
        """Returns the layers in order."""

    def restore(self, name: str) -> tuple[LayerManifest, tuple[LayerManifest, ...]]:
        """Returns a commit, and the layers that show what it holds, lowest first."""

    def plan(self, manifests: Sequence[LayerManifest]) -> RootfsPlan:
        """Returns where their blobs are."""

    def tidy(self, in_use: Collection[str] = ()) -> None:
        """Removes this node's copies that have been of no use for a while."""

    def hold(self, manifests: Sequence[LayerManifest]) -> None:
        """Makes their blobs stay for a minute at least."""

    def list(self) -> tuple[LayerManifest, ...]:
        """Returns all layers."""

    def inspect(self, name: str) -> LayerManifest:
        """Returns one layer."""

    def remove(self, name: str, in_use: Collection[str] = ()) -> None:
        """Removes a layer that is not in use."""

    def verify(self, name: str, *, remove_damaged: bool) -> LayerCheck:
        """Reads a layer's bytes again and compares them with their digests."""

    def verify_records(self) -> RecordsCheck:
        """Says which records of the store are damaged."""

    def last_check(self, name: str) -> LayerCheck:
        """Returns what the last such reading found."""

    def pin(self, name: str) -> LayerManifest:
        """Makes a layer stay whatever its name does."""

    def unpin(self, name: str) -> LayerManifest:
        """Takes that back."""

    def import_tar(self, name: str, fileobj: Reader) -> LayerManifest:
        """Makes a layer of an archive."""

    def debian(
        self, name: str, suite: str, packages: Sequence[str], log: Log, refresh: bool
    ) -> LayerManifest:
        """Makes a base layer."""

    def diff(self, upper: Upper) -> Sequence[Change]:
        """Returns what was written."""

    def diff_tar(self, upper: Upper, under: str = "/") -> Iterator[bytes]:
        """Gives what was written."""

    def commit(
        self,
        upper: Upper,
        name: str,
        *,
        exclude: Sequence[str] = (),
        scrub: tuple[str, ...] | None = None,
        recipe: Mapping[str, str] | None = None,
        parents: tuple[str, ...] = (),
        below: tuple[LayerManifest, ...] = (),
        apart: Apart | None = None,
        log: Log = print,
    ) -> LayerManifest:
        """Makes a layer of what was written."""

    def shorten(
        self, commit: LayerManifest, most: int, *, apart: Apart | None = None, log: Log = print
    ) -> int:
        """Makes the chain of a commit short."""
