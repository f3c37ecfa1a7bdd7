"""The life of a compressed swap device, on a directory tree that plays the kernel."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from skerry.density.zram import Kernel, Zram, label_of, offered, swap_header
from skerry.errors import InvalidRequest, Unavailable

MIB = 1 << 20
SIZE = 64 * MIB


class World:
    """`hot_add` always gives number 3. What the kernel does by itself is done in `call`."""

    def __init__(self, place: Path, algorithms: str = "lzo [lzo-rle] lz4") -> None:
        self.place = place
        self.calls: list[tuple[str, str]] = []
        self.fail: OSError | None = None
        self.control = place / "sys/class/zram-control"
        self.control.mkdir(parents=True)
        (self.control / "hot_add").write_text("3\n")
        self.swaps = place / "swaps"
        self.swaps.write_text("Filename Type Size Used Priority\n")
        self.device(3, "0", algorithms)
        self.kernel = Kernel(
            sys=str(place / "sys"), dev=str(place / "dev"), swaps=str(self.swaps), call=self.call
        )

    def device(self, number: int, state: str, algorithms: str = "[lzo]") -> Path:
        settings = self.place / f"sys/block/zram{number}"
        settings.mkdir(parents=True)
        (settings / "initstate").write_text(state)
        (settings / "comp_algorithm").write_text(algorithms)
        path = self.place / f"dev/zram{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(4096))
        return path

    def call(self, name: str, device: bytes, _flags: int) -> None:
        self.calls.append((name, device.decode()))
        if self.fail is not None:
            raise self.fail
        settings = self.place / "sys/block" / Path(device.decode()).name
        if name == "swapon":
            size = int((settings / "disksize").read_text())
            self.use(device.decode(), size)
            (settings / "initstate").write_text("1")
        else:
            self.swaps.write_text("Filename Type Size Used Priority\n")

    def use(self, device: str, size: int) -> None:
        line = f"{device} partition {(size - 4096) >> 10} 0 100\n"
        self.swaps.write_text(self.swaps.read_text() + line)

    def setting(self, number: int, name: str) -> str:
        return (self.place / f"sys/block/zram{number}/{name}").read_text()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_device_is_made_labelled_and_taken_into_use(world):
    device = Zram("abcde", world.kernel).open(SIZE)
    assert device == str(world.place / "dev/zram3")
    assert world.setting(3, "disksize") == str(SIZE)
    assert world.setting(3, "comp_algorithm") == "lz4"
    assert world.kernel.label(Path(device)) == "skerry-abcde"
    assert world.calls == [("swapon", device)]


def test_zstd_is_preferred_and_a_kernel_with_neither_keeps_its_default(tmp_path):
    world = World(tmp_path / "a", "lzo [lz4] zstd")
    Zram("abcde", world.kernel).open(SIZE)
    assert world.setting(3, "comp_algorithm") == "zstd"
    world = World(tmp_path / "b", "[lzo-rle] lzo")
    Zram("abcde", world.kernel).open(SIZE)
    assert world.setting(3, "comp_algorithm") == "[lzo-rle] lzo"


def test_device_that_a_killed_node_left_is_used_again(world):
    Zram("abcde", world.kernel).open(SIZE)
    world.calls.clear()
    assert Zram("abcde", world.kernel).open(SIZE).endswith("zram3")
    assert world.calls == []


def test_device_of_another_size_is_replaced(world):
    Zram("abcde", world.kernel).open(SIZE)
    Zram("abcde", world.kernel).open(2 * SIZE)
    assert [name for name, _ in world.calls] == ["swapon", "swapoff", "swapon"]
    assert world.setting(3, "disksize") == str(2 * SIZE)


def test_only_devices_of_this_node_are_touched(world):
    page = 4096
    others = {5: label_of("zzzzz"), 6: "", 7: "skerry-abcdef"}
    for number, label in others.items():
        path = world.device(number, "1")
        path.write_bytes(swap_header(SIZE, label, page))
        world.use(str(path), SIZE)
    bare = world.device(8, "0")
    bare.write_bytes(swap_header(SIZE, label_of("abcde"), page))  # reset: its content is nobody's
    zram = Zram("abcde", world.kernel)
    assert zram.found() == []
    zram.close()
    assert world.calls == []
    for number in (*others, 8):
        assert not (world.place / f"sys/block/zram{number}/reset").exists()


def test_close_removes_the_device_after_reading_it_back(world):
    zram = Zram("abcde", world.kernel)
    zram.open(SIZE)
    zram.close()
    assert world.calls[-1][0] == "swapoff"
    assert world.setting(3, "reset") == "1"
    assert (world.control / "hot_remove").read_text() == "3"


def test_content_that_does_not_fit_into_memory_keeps_the_device(world):
    zram = Zram("abcde", world.kernel)
    zram.open(SIZE)
    world.fail = OSError(errno.ENOMEM, "no memory")
    with pytest.raises(Unavailable, match="stays in use"):
        zram.close()
    assert not (world.control / "hot_remove").exists()


def test_kernel_without_zram_is_named(tmp_path):
    kernel = Kernel(sys=str(tmp_path), dev=str(tmp_path), swaps=str(tmp_path / "swaps"))
    assert not offered(kernel)
    with pytest.raises(Unavailable, match="no zram"):
        Zram("abcde", kernel).open(SIZE)


def test_device_that_cannot_be_used_is_removed_again(world):
    world.fail = OSError(errno.EPERM, "not permitted")
    with pytest.raises(Unavailable, match="not permitted"):
        Zram("abcde", world.kernel).open(SIZE)
    assert (world.control / "hot_remove").read_text() == "3"


@pytest.mark.parametrize("size", [0, MIB, 1 << 60])
def test_size_out_of_bounds_is_the_callers_fault(world, size):
    with pytest.raises(InvalidRequest, match="zram"):
        Zram("abcde", world.kernel).open(size)
