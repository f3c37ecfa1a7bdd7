"""Devices: what a container may be given, and how shares are counted."""

from __future__ import annotations

import pytest

from skerry.errors import InvalidRequest
from skerry.spec.device import NODES_MAX, SHARES, Device, DeviceClaim, DeviceMode, DeviceNode


def shared(share: float) -> DeviceClaim:
    return DeviceClaim(mode=DeviceMode.SHARED, share=share)


@pytest.mark.parametrize(
    ("share", "shares"),
    [(1.0, SHARES), (0.5, 500), (0.001, 1), (0.1, 100), (0.3, 300), (1 / 3, 334), (0.9999, SHARES)],
)
def test_share_counts_as_whole_thousandths_never_as_less(share: float, shares: int) -> None:
    assert shared(share).check().shares == shares


def test_exclusive_claim_takes_the_whole_device() -> None:
    assert DeviceClaim().check().shares == SHARES


@pytest.mark.parametrize("name", ["nvidia0", "nvidia-caps/nvidia-cap1", "dri/renderD128", "a" * 31])
def test_node_names_of_devices_are_taken(name: str) -> None:
    assert DeviceNode(name, 195, 0).check().name == name


@pytest.mark.parametrize(
    "node",
    [
        DeviceNode("null", 1, 3),
        DeviceNode("shm/a", 195, 0),
        DeviceNode("../sda", 8, 0),
        DeviceNode("/dev/nvidia0", 195, 0),
        DeviceNode("a/b/c", 195, 0),
        DeviceNode("a b", 195, 0),
        DeviceNode("gpu\n", 195, 0),
        DeviceNode("", 195, 0),
        DeviceNode("a" * 32, 195, 0),
        DeviceNode("a", 0, 0),
        DeviceNode("a", 4096, 0),
        DeviceNode("a", 195, 1 << 20),
        DeviceNode("mem", 1, 1),
        DeviceNode("kmsg", 1, 11),
    ],
)
def test_node_that_is_no_device_of_its_own_is_refused(node: DeviceNode) -> None:
    with pytest.raises(InvalidRequest, match="device node"):
        node.check()


NODE = DeviceNode("fakegpu0", 1, 7)


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"id": "a b"}, "an id"),
        ({"name": "/dev/x"}, "name"),
        ({"nodes": ()}, "device nodes"),
        ({"nodes": (NODE, NODE)}, "twice"),
        ({"nodes": tuple(DeviceNode(f"g{n}", 195, n) for n in range(NODES_MAX + 1))}, "nodes"),
        ({"memory_bytes": 0}, "memory"),
        ({"env": {"a=b": ""}}, "env"),
    ],
)
def test_device_out_of_bounds_is_refused(values: dict[str, object], word: str) -> None:
    good: dict[str, object] = {"id": "gpu0", "provider": "config", "nodes": (NODE,)}
    assert Device(**good).check().id == "gpu0"
    with pytest.raises(InvalidRequest, match=word):
        Device(**(good | values)).check()
