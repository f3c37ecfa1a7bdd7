"""NVIDIA's devices, found in trees of the form that its documentation gives. No GPU was at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.backends.devices.nvidia import Nvidia
from skerry.backends.devices.provider import take_stock
from skerry.spec.device import DeviceNode

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
237 nvidia-caps
510 nvidia-uvm

Block devices:
  7 loop
999 nvidia-uvm
"""
UUID = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"


def information(minor: int, uuid: str = UUID, model: str = "NVIDIA A100-SXM4-40GB") -> str:
    """As the driver writes it: blanks and tabs between."""
    return (
        f"Model: \t\t {model}\nIRQ:   \t\t 63\nGPU UUID: \t {uuid}\nVideo BIOS: \t 92.00.19.00.01\n"
        f"Bus Type: \t PCIe\nDMA Size: \t 47 bits\nBus Location: \t 0000:17:00.0\n"
        f"Device Minor: \t {minor}\nGPU Excluded:\t No\n"
    )


class Host:
    """A tree that stands for the root of a host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/devices", DEVICES)

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def gpu(self, bus: str, text: str) -> None:
        self.write(f"proc/driver/nvidia/gpus/{bus}/information", text)

    def capability(self, path: str, minor: int) -> None:
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        self.write(f"proc/driver/nvidia/capabilities/{path}/access", text)

    def probe(self):
        return take_stock([Nvidia(str(self.root))]).found[0]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_host_without_the_driver_has_none_and_says_why(host: Host) -> None:
    found = host.probe()
    assert (found.devices, found.provider) == ((), "nvidia")
    assert "not loaded" in found.reason


def test_each_gpu_is_a_device_with_its_own_node_and_the_common_ones(host: Host) -> None:
    host.gpu("0000:17:00.0", information(1))
    host.gpu("0000:65:00.0", information(0, uuid="GPU-????????-????-????-????-????????????"))
    first, second = host.probe().devices
    assert (first.id, first.name, first.model) == (UUID, "gpu", "NVIDIA A100-SXM4-40GB")
    assert first.nodes == (
        DeviceNode("nvidia1", 195, 1),
        DeviceNode("nvidiactl", 195, 255),
        DeviceNode("nvidia-uvm", 510, 0),
    )
    # One that nothing has used yet tells no UUID: it is named after its place on the bus.
    assert (second.id, second.nodes[0]) == ("nvidia-0000-65-00.0", DeviceNode("nvidia0", 195, 0))
    assert first.memory_bytes is None


def test_partitions_are_devices_of_their_own_in_place_of_their_gpu(host: Host) -> None:
    host.gpu("0000:17:00.0", information(0))
    host.gpu("0000:65:00.0", information(1, uuid="GPU-00000000-1111-2222-3333-444444444444"))
    host.capability("mig/config", 1)
    host.capability("gpu0/mig/gi2", 21)
    host.capability("gpu0/mig/gi2/ci0", 22)
    host.capability("gpu0/mig/gi10", 93)
    host.capability("gpu0/mig/gi10/ci0", 94)
    host.capability("gpu0/mig/gi10/ci1", 95)
    devices = host.probe().devices
    assert [one.id for one in devices] == [
        f"{UUID}:gi2:ci0", f"{UUID}:gi10:ci0", f"{UUID}:gi10:ci1",
        "GPU-00000000-1111-2222-3333-444444444444",
    ]  # fmt: skip
    assert devices[1].parent == UUID
    assert devices[1].nodes[3:] == (
        DeviceNode("nvidia-caps/nvidia-cap93", 237, 93),
        DeviceNode("nvidia-caps/nvidia-cap94", 237, 94),
    )
    # mig/config, which makes and destroys partitions, is in none of them.
    names = {node.name for one in devices for node in one.nodes}
    assert "nvidia-caps/nvidia-cap1" not in names


def test_without_uvm_no_device_and_the_remedy(host: Host) -> None:
    host.gpu("0000:17:00.0", information(0))
    host.write("proc/devices", DEVICES.replace("510 nvidia-uvm", ""))  # the block device stays
    found = host.probe()
    assert found.devices == ()
    assert "modprobe nvidia-uvm" in found.reason


def test_older_driver_calls_its_major_frontend(host: Host) -> None:
    host.gpu("0000:17:00.0", information(0))
    host.write("proc/devices", "Character devices:\n195 nvidia-frontend\n510 nvidia-uvm\n")
    assert host.probe().devices[0].nodes[0] == DeviceNode("nvidia0", 195, 0)


@pytest.mark.parametrize(
    "text", ["", "Device Minor: x", "Device Minor: -1", "Device Minor: 255", "\x00:\xff", ":" * 99]
)
def test_gpu_that_says_nothing_sensible_is_left_out_and_named(host: Host, text: str) -> None:
    host.gpu("0000:17:00.0", information(0))
    host.gpu("0000:65:00.0", text)
    found = host.probe()
    assert [one.id for one in found.devices] == [UUID]
    assert "0000:65:00.0" in found.reason


def test_partitions_without_capabilities_give_no_device_rather_than_the_whole_gpu(
    host: Host,
) -> None:
    host.gpu("0000:17:00.0", information(0))
    host.capability("gpu0/mig/gi2", 21)
    found = host.probe()
    assert (found.devices, "compute instance" in found.reason) == ((), True)
    host.capability("gpu0/mig/gi2/ci0", 22)
    host.write("proc/devices", DEVICES.replace("237 nvidia-caps", ""))
    found = host.probe()
    assert (found.devices, "nvidia-caps" in found.reason) == ((), True)
