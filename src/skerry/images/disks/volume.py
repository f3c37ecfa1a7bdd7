"""An open disk: overlays over the map of a snapshot, and what may happen to them at once.

A read sees the newest overlay that has the block, else the data blob that the map names, else zeros.
A snapshot begins a new overlay on top; that takes a moment, in which writes wait. What was below is
packed elsewhere (`packing.py`), and then `rebase` puts the packed snapshot in its place: what is
read does not change.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from skerry.errors import Conflict, StorageFailed
from skerry.images.disks import state
from skerry.images.disks.local import read_map
from skerry.images.disks.overlay import BLOCK_BYTES, Overlay
from skerry.images.disks.state import DiskState, Frozen
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.images.format.diskmap import DiskMap
from skerry.spec.layers import LayerManifest

FROZEN_MAX: Final = 16
_CHUNK_BLOCKS: Final = CHUNK_BYTES // BLOCK_BYTES


class Gate:
    """Many at once, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._taken = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Within it nobody is alone."""
        with self._changed:
            while self._taken:
                self._changed.wait()
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if not self._inside:
                    self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within it nobody else is inside."""
        with self._changed:
            while self._taken:
                self._changed.wait()
            self._taken = True
            while self._inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()


class View(NamedTuple):
    """What a disk is made of at a moment; overlays newest first."""

    map: DiskMap
    overlays: tuple[Overlay, ...]


class Piece(NamedTuple):
    """A range of the disk with one source: an overlay, a chunk of a data blob, or zeros (neither)."""

    offset: int
    length: int
    overlay: Overlay | None = None
    blob: int = -1  # of the map
    at: int = 0  # where in the blob


def pieces(view: View, offset: int, length: int) -> list[Piece]:
    """Returns where the bytes of a range are, in order."""
    found: list[Piece] = []
    first, end = offset // BLOCK_BYTES, -(-(offset + length) // BLOCK_BYTES)
    _split(view, 0, first, end, found)
    return [_cut(piece, offset, offset + length) for piece in found]


def _split(view: View, depth: int, first: int, end: int, found: list[Piece]) -> None:
    if depth == len(view.overlays):
        _below(view.map, first, end, found)
        return
    overlay = view.overlays[depth]
    for start, stop, ours in overlay.runs(first, end):
        if ours:
            length = (stop - start) * BLOCK_BYTES
            found.append(Piece(start * BLOCK_BYTES, length, overlay))
        else:
            _split(view, depth + 1, start, stop, found)


def _below(disk: DiskMap, first: int, end: int, found: list[Piece]) -> None:
    while first < end:
        chunk = first // _CHUNK_BLOCKS
        stop = min(end, (chunk + 1) * _CHUNK_BLOCKS)
        offset, length = first * BLOCK_BYTES, (stop - first) * BLOCK_BYTES
        place = disk.find(chunk)
        if place is None:
            found.append(Piece(offset, length))
        else:
            at = place.chunk * CHUNK_BYTES + offset % CHUNK_BYTES
            last = found[-1] if found else None
            if (
                last is not None
                and last.blob == place.blob
                and last.at + last.length == at
                and last.offset + last.length == offset
            ):
                found[-1] = last._replace(length=last.length + length)
            else:
                found.append(Piece(offset, length, None, place.blob, at))
        first = stop


def _cut(piece: Piece, start: int, end: int) -> Piece:
    """Returns the part of a piece that lies within a range."""
    begin, stop = max(piece.offset, start), min(piece.offset + piece.length, end)
    at = piece.at + begin - piece.offset
    return piece._replace(offset=begin, length=stop - begin, at=at)


class Volume:
    """One open disk. Its directory is this process's alone."""

    def __init__(self, directory: str, disk: DiskState, base: DiskMap) -> None:
        """Takes up what is there, also after a crash; raises StorageFailed."""
        self.directory = directory
        self.gate = Gate()
        self.closed = False  # its directory is gone
        self.opens = _read_opens(directory)  # who has it open, as far as is known
        boot = state.boot_id()
        same = disk.boot == boot
        overlays = [Overlay(directory, at, base.size, same_boot=same) for at in disk.overlays]
        self.view = View(base, tuple(reversed(overlays)))
        self._turn = threading.Lock()  # of the one who changes the state
        self.failures: dict[str, str] = {}  # of snapshots, by name
        if not same:
            # What was not on the disk yet is no snapshot any more; what is left of it stays.
            for one in disk.frozen:
                if not one.safe:
                    self.failures[one.name] = "the host stopped before it was on the disk"
            kept = tuple(one for one in disk.frozen if one.safe)
            disk = msgspec.structs.replace(disk, boot=boot, frozen=kept)
            self._save(disk)
        # Otherwise nothing is written: a full disk can be read all the same.
        self.state = disk

    @property
    def size(self) -> int:
        """How large the disk is."""
        return self.view.map.size

    def pieces(self, offset: int, length: int) -> list[Piece]:
        """Returns where the bytes of a range are now."""
        return pieces(self.view, offset, length)

    def flush(self) -> None:
        """Everything answered before is on the disk; raises OSError."""
        for overlay in reversed(self.view.overlays):
            overlay.flush()

    def zeros_below(self, first: int, end: int) -> bool:
        """Says whether these blocks, which the newest overlay does not have, are zeros below it."""
        view = self.view
        if any(overlay.any_marked(first, end) for overlay in view.overlays[1:]):
            return False
        return view.map.zero_until(first // _CHUNK_BLOCKS) * _CHUNK_BLOCKS >= end

    # --- snapshots ---

    def freeze(self, name: str) -> Frozen:
        """Everything answered before is in the snapshot, nothing answered later; it can be packed.

        Raises Conflict while too many wait to be packed, StorageFailed.
        """
        with self._turn:
            if len(self.state.frozen) >= FROZEN_MAX:
                raise Conflict(f"{FROZEN_MAX} snapshots of {self.state.id} are not packed yet")
            number = (
                self.state.overlays[-1] + 1
            )  # an unused one of a snapshot cut off is a step too
            fresh = Overlay(self.directory, number, self.size)
            # Known before it is written to; an empty overlay on top changes nothing.
            overlays = (*self.state.overlays, number)
            self._save(msgspec.structs.replace(self.state, overlays=overlays))
            with self.gate.alone():
                self.view = View(self.view.map, (fresh, *self.view.overlays))
            frozen = Frozen(name=name, overlay=number - 1)
            left = (*self.state.frozen, frozen)
            self._save(msgspec.structs.replace(self.state, frozen=left))
        return frozen

    def make_safe(self) -> None:
        """Puts snapshots on the disk that are not yet; raises OSError, StorageFailed."""
        frozen = self.state.frozen
        if all(one.safe for one in frozen):
            return
        self.flush()
        with self._turn:
            done = tuple(
                msgspec.structs.replace(one, safe=True) if one in frozen else one
                for one in self.state.frozen
            )
            self._save(msgspec.structs.replace(self.state, frozen=done))

    def rebase(self, frozen: Frozen, manifest: LayerManifest, base: DiskMap) -> None:
        """Puts a packed snapshot in the place of what it was made of; reads stay what they were."""
        with self._turn:
            gone = tuple(at for at in self.state.overlays if at <= frozen.overlay)
            left = tuple(one for one in self.state.frozen if one.overlay > frozen.overlay)
            changed = msgspec.structs.replace(
                self.state,
                manifest=manifest,
                overlays=self.state.overlays[len(gone) :],
                frozen=left,
            )
            self._save(changed)
            view = self.view
            with self.gate.alone():
                kept = tuple(one for one in view.overlays if one.number not in gone)
                self.view = View(base, kept)
            for overlay in view.overlays:
                if overlay.number in gone:
                    overlay.remove()

    def give_up(self, frozen: Frozen, why: str) -> None:
        """A snapshot cannot be packed: what was written stays on the disk, and in the next one."""
        with self._turn:
            left = tuple(one for one in self.state.frozen if one != frozen)
            self._save(msgspec.structs.replace(self.state, frozen=left))
            self.failures[frozen.name] = why

    # --- who has it open ---

    def count_opens(self, by: int) -> None:
        """Takes note of one more, or one less, who has it open; the next process knows it too."""
        with self._turn:
            self.opens = max(0, self.opens + by)
            path = os.path.join(self.directory, "opens")
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:  # in place: on a full disk there is no room for another
                    os.pwrite(handle, b"%08d\n" % self.opens, 0)
                finally:
                    os.close(handle)

    def changed(self) -> bool:
        """Says whether anything was written since the snapshot below."""
        return any(
            overlay.any_marked(0, len(overlay.marks)) for overlay in self.view.overlays
        ) or bool(self.state.frozen)

    def local_bytes(self) -> int:
        """Returns the room that its overlays take."""
        return sum(overlay.used_bytes() for overlay in self.view.overlays)

    def _save(self, disk: DiskState) -> None:
        state.save(os.path.join(self.directory, "disk.json"), disk)
        self.state = disk


def _read_opens(directory: str) -> int:
    try:
        with open(os.path.join(directory, "opens"), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def open_volume(root: str, name: str) -> Volume:
    """Takes up an open disk from its directory; raises StorageFailed, LayerDamaged."""
    directory = os.path.join(root, "open", name)
    try:
        disk = state.load(os.path.join(directory, "disk.json"), DiskState)
    except OSError as error:
        raise StorageFailed(f"opening the disk {name}: {error.strerror}") from error
    return Volume(directory, disk, read_map(root, disk.manifest.digest))
