"""Compressed swap in memory that belongs to one node (kernel: admin-guide/blockdev/zram).

A device is ours if its swap header carries our label; no other is ever touched. One that a killed
node left is found by that and used again, with what is swapped to it. A device takes memory only for
what is in it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from skerry.errors import InvalidRequest, Unavailable

SIZE_MIN = 16 << 20
PRIORITY = 100  # before any disk, which by default gets less than 0
ALGORITHMS = ("zstd", "lz4")  # the first that is offered; else the kernel's default
BUSY_TRIES = 50
BUSY_PAUSE_S = 0.1
_HEAD = 1024  # of the swap header (include/linux/swap.h, union swap_header)
_LABEL = _HEAD + 12 + 16
_LABEL_BYTES = 16
_PREFER = 0x8000


def label_of(node: str) -> str:
    """Returns the label of a node's device."""
    return f"skerry-{node}"


def swap_header(size_bytes: int, label: str, page: int) -> bytes:
    """Returns the first page of a swap area."""
    name = label.encode()
    if len(name) >= _LABEL_BYTES:
        raise InvalidRequest(f"zram: the label {label!r} is too long")
    head = bytearray(page)
    struct.pack_into("<III16s16s", head, _HEAD, 1, size_bytes // page - 1, 0, os.urandom(16), name)
    head[-10:] = b"SWAPSPACE2"
    return bytes(head)


class Kernel:
    """What is asked of the kernel; tests give directories and calls of their own."""

    def __init__(
        self,
        *,
        sys: str = "/sys",
        dev: str = "/dev",
        swaps: str = "/proc/swaps",
        call: Callable[[str, bytes, int], None] | None = None,
    ) -> None:
        self.control = Path(sys, "class/zram-control")
        self.block = Path(sys, "block")
        self.dev = Path(dev)
        self._swaps = Path(swaps)
        self._call = call or _swap_call

    def swapon(self, device: str) -> None:
        """Takes an area into use."""
        self._call("swapon", device.encode(), _PREFER | PRIORITY)

    def swapoff(self, device: str) -> None:
        """Reads back all that is in it, and lets go of it."""
        self._call("swapoff", device.encode(), 0)

    def areas(self) -> dict[str, int]:
        """Returns devices in use and their bytes."""
        try:
            lines = self._swaps.read_text().splitlines()[1:]
        except OSError:
            return {}
        rows = [line.split() for line in lines]
        return {row[0]: int(row[2]) << 10 for row in rows if len(row) >= 5}

    def label(self, device: Path) -> str:
        """Returns the label of a device's swap header; "" if it has none."""
        try:
            with device.open("rb", buffering=0) as file:
                head = file.read(_LABEL + _LABEL_BYTES)
        except OSError:
            return ""
        return head[_LABEL:].rstrip(b"\0").decode("ascii", "replace")


def offered(kernel: Kernel | None = None) -> bool:
    """Whether this kernel can make devices."""
    return (kernel or Kernel()).control.joinpath("hot_add").exists()


class Zram:
    """The one device of a node. All calls block; `close` as long as reading it back takes."""

    def __init__(self, node: str, kernel: Kernel | None = None) -> None:
        self._label = label_of(node)
        self._kernel = kernel or Kernel()

    def open(self, size_bytes: int) -> str:
        """Returns the device in use, an earlier one or a new one.

        Raises InvalidRequest for a size out of bounds, Unavailable if the kernel has no zram.
        """
        page = os.sysconf("SC_PAGE_SIZE")
        memory = page * os.sysconf("SC_PHYS_PAGES")
        if not SIZE_MIN <= size_bytes <= 8 * memory:
            raise InvalidRequest("zram: at least 16 MiB, at most eight times the host's memory")
        size_bytes -= size_bytes % page
        areas = self._kernel.areas()
        for number in self.found():
            device = self._device(number)
            if areas.get(device) == size_bytes - page:
                return device
            self._remove(number)
        return self._make(size_bytes, page)

    def close(self) -> None:
        """Removes every device of ours; what was in it is back in memory.

        Raises Unavailable if the memory does not suffice: then it stays in use.
        """
        for number in self.found():
            self._remove(number)

    def found(self) -> list[int]:
        """Returns the numbers of our devices."""
        numbers = []
        for path in sorted(self._kernel.block.glob("zram*")):
            number = path.name.removeprefix("zram")
            state = _text(path / "initstate")
            if not number.isdigit() or state != "1":
                continue
            if self._kernel.label(self._kernel.dev / path.name) == self._label:
                numbers.append(int(number))
        return numbers

    def _device(self, number: int) -> str:
        return str(self._kernel.dev / f"zram{number}")

    def _make(self, size_bytes: int, page: int) -> str:
        try:
            number = int((self._kernel.control / "hot_add").read_text())
        except FileNotFoundError:
            raise Unavailable(
                "zram: this kernel has no zram: load it (modprobe zram), or start without --zram"
            ) from None
        except OSError as error:
            raise Unavailable(f"zram: no device can be made: {error}") from error
        device = self._device(number)
        try:
            settings = self._kernel.block / f"zram{number}"
            known = _text(settings / "comp_algorithm").replace("[", "").replace("]", "").split()
            for name in ALGORITHMS:
                if name in known:
                    (settings / "comp_algorithm").write_text(name)
                    break
            (settings / "disksize").write_text(str(size_bytes))
            with open(device, "r+b", buffering=0) as file:
                file.write(swap_header(size_bytes, self._label, page))
                os.fsync(file.fileno())
            self._kernel.swapon(device)
        except BaseException as error:
            self._discard(number)
            if isinstance(error, OSError):
                raise Unavailable(f"zram: {device} cannot be used as swap: {error}") from error
            raise
        return device

    def _remove(self, number: int) -> None:
        device = self._device(number)
        if device in self._kernel.areas():
            try:
                self._kernel.swapoff(device)
            except OSError as error:
                raise Unavailable(f"zram: {device} stays in use: {error}") from error
        self._discard(number)

    def _discard(self, number: int) -> None:
        for tries in range(BUSY_TRIES):
            try:
                (self._kernel.block / f"zram{number}" / "reset").write_text("1")
                (self._kernel.control / "hot_remove").write_text(str(number))
                return
            except OSError as error:
                # Something like udev looks at a new device for a moment.
                if error.errno != errno.EBUSY or tries == BUSY_TRIES - 1:
                    raise Unavailable(f"zram: zram{number} cannot be removed: {error}") from error
            time.sleep(BUSY_PAUSE_S)


def _swap_call(name: str, device: bytes, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.swapon(device, flags) if name == "swapon" else libc.swapoff(device)
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), device.decode())


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
