"""NVIDIA GPUs, found by what their driver says under /proc, without any library of theirs.

Not run on a real GPU: the files are read as NVIDIA documents them (the driver's README, "Using the
/proc File System Interface"; the MIG user guide, "Device Nodes and Capabilities"), and tested on trees
of that form. What is read:

    /proc/driver/nvidia/gpus/BUS/information          "Model:", "GPU UUID:", "Device Minor:"
    /proc/driver/nvidia/capabilities/gpuN/mig/giG/ciC/access    "DeviceFileMinor:"; N is the GPU's minor
    /proc/devices                                     majors of nvidia, nvidia-uvm and nvidia-caps

A GPU without partitions is one device: /dev/nvidiaN, nvidiactl and nvidia-uvm. Where it has MIG
partitions, each compute instance is a device instead: the same nodes and the two capabilities that
guard it. How much memory there is the driver says to its own library only, so it is not told.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from skerry.backends.devices.provider import Found
from skerry.backends.shared import proc
from skerry.spec.device import Device, DeviceNode

MAJOR: Final = 195  # of the driver, assigned for good (admin-guide/devices.txt)
CONTROL_MINOR: Final = 255
_NUMBERED = re.compile(r"(gpu|gi|ci)([0-9]{1,4})")
_UUID = re.compile(r"GPU-[0-9a-fA-F-]{8,64}")


class _Gpu(NamedTuple):
    minor: int
    uuid: str
    model: str


class Nvidia:
    """The provider. `root` stands for / of the host."""

    name = "nvidia"

    def __init__(self, root: str = "") -> None:
        self._root = root

    def probe(self) -> Found:
        """Returns GPUs and partitions; without the driver, or without nvidia-uvm, none."""
        base = f"{self._root}/proc/driver/nvidia"
        buses = proc.names(f"{base}/gpus")
        if not buses:
            return self._none("its kernel driver is not loaded, or knows no GPU")
        majors = _majors(proc.text(f"{self._root}/proc/devices"))
        if "nvidia-uvm" not in majors:
            return self._none("nvidia-uvm is not loaded, which CUDA needs: modprobe nvidia-uvm")
        devices: list[Device] = []
        odd: list[str] = []
        for bus in buses:
            gpu = _gpu(proc.text(f"{base}/gpus/{bus}/information"))
            if gpu is None:
                odd.append(f"{bus} tells no minor number: the GPU was never initialised")
                continue
            nodes = _nodes(gpu.minor, majors)
            whole = Device(
                id=gpu.uuid or f"nvidia-{bus.replace(':', '-')}",
                provider=self.name,
                model=gpu.model,
                nodes=nodes,
            )
            parts, why = self._partitions(base, gpu, whole, majors.get("nvidia-caps"))
            devices += [whole] if parts is None else parts
            odd += [why] if why else []
        return Found(provider=self.name, devices=tuple(devices), reason="; ".join(odd))

    def _none(self, why: str) -> Found:
        return Found(provider=self.name, reason=why)

    def _partitions(
        self, base: str, gpu: _Gpu, whole: Device, caps: int | None
    ) -> tuple[list[Device] | None, str]:
        """Returns a GPU's partitions, which may be none; None if it is not partitioned."""
        mig = f"{base}/capabilities/gpu{gpu.minor}/mig"
        instances = _numbered(proc.names(mig), "gi")
        if not instances:
            return None, ""
        if caps is None:
            return [], f"{whole.id} has partitions, and /proc/devices no nvidia-caps"
        parts: list[Device] = []
        for gi in instances:
            first = _access(proc.text(f"{mig}/gi{gi}/access"))
            for ci in _numbered(proc.names(f"{mig}/gi{gi}"), "ci"):
                second = _access(proc.text(f"{mig}/gi{gi}/ci{ci}/access"))
                if first is None or second is None:
                    continue
                guards = tuple(
                    DeviceNode(f"nvidia-caps/nvidia-cap{minor}", caps, minor)
                    for minor in (first, second)
                )
                parts.append(
                    Device(
                        id=f"{whole.id}:gi{gi}:ci{ci}",
                        provider=self.name,
                        model=f"{gpu.model} MIG".strip(),
                        nodes=(*whole.nodes, *guards),
                        parent=whole.id,
                    )
                )
        return parts, "" if parts else f"{whole.id} has GPU instances without a compute instance"


def _majors(text: str) -> dict[str, int]:
    """Returns the majors of character devices by name."""
    majors: dict[str, int] = {}
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdecimal():
            majors.setdefault(name.strip(), int(number))
    return majors


def _nodes(minor: int, majors: dict[str, int]) -> tuple[DeviceNode, ...]:
    major = majors.get("nvidia", majors.get("nvidia-frontend", MAJOR))
    return (
        DeviceNode(f"nvidia{minor}", major, minor),
        DeviceNode("nvidiactl", major, CONTROL_MINOR),
        DeviceNode("nvidia-uvm", majors["nvidia-uvm"], 0),
    )


def _gpu(text: str) -> _Gpu | None:
    fields = {
        key.strip(): value.strip()
        for key, colon, value in (line.partition(":") for line in text.splitlines())
        if colon
    }
    minor, uuid = fields.get("Device Minor", ""), fields.get("GPU UUID", "")
    if not minor.isdecimal() or int(minor) >= CONTROL_MINOR - 1:  # then nvidia-modeset
        return None
    # Of a GPU that was not used yet the driver says "GPU-????????-...".
    known = uuid if _UUID.fullmatch(uuid) else ""
    return _Gpu(int(minor), known, fields.get("Model", "")[:128])


def _numbered(names: list[str], word: str) -> list[int]:
    found = (_NUMBERED.fullmatch(name) for name in names)
    return sorted(int(one[2]) for one in found if one is not None and one[1] == word)


def _access(text: str) -> int | None:
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "DeviceFileMinor" and value.strip().isdecimal():
            return int(value)
    return None
