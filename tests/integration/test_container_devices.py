"""Device nodes of containers: who is given one opens it; nobody else can, whatever it tries.

The device is real to the kernel and harmless: `full` under another name, which no other path inside
has. Reads give zeros, writes ENOSPC: so what was opened can be told.
"""

from __future__ import annotations

import os
import tempfile

import pytest

from skerry.backends.container import build_backend
from skerry.errors import SkerryError
from skerry.spec.device import DeviceNode
from skerry.spec.ids import base32
from skerry.testing import rootfs as rootfs_module
from skerry.testing.conformance import Box, Conformance
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=container_reason()),
]

GPU = DeviceNode("fakegpu0", 1, 7)
CAP = DeviceNode("fake-caps/fake-cap1", 1, 5)
OPEN = "sh -c 'head -c 3 {0} | od -An -tx1; echo x | cat > {0}' 2>&1"


@pytest.fixture
async def backend(census):
    state = tempfile.mkdtemp(prefix="skerry-state-", dir="/var/tmp")
    run = tempfile.mkdtemp(prefix="skerry-", dir="/run")
    census.watch(places=(state, run))
    made = build_backend(
        state_dir=state, run_dir=run, node=base32(int.from_bytes(os.urandom(4), "big"), 5),
        layer_dirs=(str(rootfs_module.directory()),),
    )  # fmt: skip
    await made.start()
    yield made
    await made.close(keep_instances=False)
    os.rmdir(run)
    os.rmdir(state)


def request(**values):
    return Conformance.request_for(rootfs_module.plan(), **values)


async def said(box: Box, line: str, **values: object) -> str:
    return (await box.sh(line, **values)).text


async def test_container_opens_the_devices_it_was_given_as_any_user(backend):
    box = Box(await backend.create(request(devices=(GPU, CAP))))
    await box.connect()
    shown = await said(box, "stat -c '%F %a %u %t:%T' /dev/fakegpu0 /dev/fake-caps/fake-cap1")
    assert shown.splitlines() == [
        "character special file 666 0 1:7", "character special file 666 0 1:5",
    ]  # fmt: skip
    for user in (b"root", b"1000:1000"):
        text = await said(box, OPEN.format("/dev/fakegpu0"), user=user)
        assert text.split()[:3] == ["00", "00", "00"], text
        assert "No space left" in text, text
    await box.disconnect()
    await box.instance.destroy()


async def test_container_without_it_cannot_open_the_device(backend):
    given = Box(await backend.create(request(devices=(GPU,))))
    other = Box(await backend.create(request()))
    for box in (given, other):
        await box.connect()
    try:
        assert "00 00 00" in await said(given, OPEN.format("/dev/fakegpu0"))  # the control
        assert await said(other, "ls -d /dev/fake* 2>/dev/null | wc -l") == "0"
        # It makes none, as root of its user namespace: on the tmpfs that is /dev, or on its disk.
        for place in ("/dev/mine", "/dev/shm/mine", "/root/mine"):
            text = await said(other, f"mknod {place} c 1 7 2>&1; echo $?; ls {place} 2>&1")
            assert "Operation not permitted" in text, text
        # Nor does who has one make another, or carry it where others could see it.
        text = await said(given, "mknod /dev/more c 1 5 2>&1; echo $?")
        assert "Operation not permitted" in text, text
        text = await said(given, "cp -a /dev/fakegpu0 /root/kept 2>&1; ls /root/kept 2>&1")
        assert "Operation not permitted" in text, text
    finally:
        for box in (given, other):
            await box.disconnect()
            await box.instance.destroy()


async def test_device_that_an_image_brings_along_is_none(backend, tmp_path):
    """A node on the container's own disk, put there by the host's root: its mount is nodev."""
    box = Box(await backend.create(request()))
    await box.connect()
    try:
        root = f"/proc/{box.instance.facts.pid}/root/root"
        os.mknod(f"{root}/brought", 0o020666, os.makedev(1, 7))
        text = await said(box, "stat -c %F /root/brought; head -c 3 /root/brought 2>&1")
        assert "character special file" in text, text
        assert "Permission denied" in text, text
        os.unlink(f"{root}/brought")
    finally:
        await box.disconnect()
        await box.instance.destroy()


async def test_name_in_use_is_refused_and_nothing_is_left(backend):
    with pytest.raises(SkerryError, match="node"):
        await backend.create(request(devices=(DeviceNode("null", 1, 5),)))
    assert not backend.parts.instances
