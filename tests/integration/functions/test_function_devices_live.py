"""Calls with a device on a real node: its containers alone see it, and it is held while they run.

The device is real to the kernel and harmless: `full` under a name of its own. No GPU ran this; one
would be seen through the same nodes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import pytest

from live_node import LiveNode
from skerry.errors import InvalidRequest, Overloaded, SkerryError
from skerry.spec.device import DeviceClaim, DeviceMode
from skerry.spec.function import Isolation
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=container_reason()),
]

IMAGE = "functions/judge"
PACKAGES = ("python3", "gcc", "libc6-dev")
DEVICES = """
[devices]
providers = []

[[devices.listed]]
id = "card0"
nodes = ["/dev/full:fakegpu"]
memory = "8GiB"
env = { CARD = "full" }
"""
# Says what it finds; a write to `full` gives ENOSPC, which nothing else of that name would.
LOOK = """
import errno, json, os
def opened(path):
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError as error:
        return errno.errorcode[error.errno]
    try:
        os.write(handle, b"x")
    except OSError as error:
        return "opened, " + errno.errorcode[error.errno]
    return "opened"
env = [os.environ.get(name) for name in ("CARD", "SKERRY_DEVICE", "SKERRY_DEVICE_MEMORY_BYTES")]
print(json.dumps([opened("/dev/fakegpu"), env]))
"""
MAKE = """
import errno, json, os, stat
said = []
for place in ("/dev/mine", "/dev/shm/mine", "/call/mine", "/tmp/mine", "/run/mine"):
    try:
        os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    except OSError as error:
        said.append(errno.errorcode[error.errno])
    else:
        said.append("made")
print(json.dumps(said))
"""
SPAN = "import time; a = time.monotonic(); time.sleep(1.5); print([a, time.monotonic()])"
REFUSED = {"EPERM", "EROFS", "EACCES"}
# A "kernel": compiled C that uses the device, for as many milliseconds as it is told.
KERNEL = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int gpu = open("/dev/fakegpu", O_RDWR);
	char got[4] = {1, 1, 1, 1};
	if (gpu < 0 || read(gpu, got, 4) != 4 || write(gpu, "x", 1) != -1 || errno != ENOSPC)
		return 1;
	printf("%d on %s\n", got[0] + got[3], getenv("SKERRY_DEVICE"));
	usleep(1000 * (argc > 1 ? atoi(argv[1]) : 0));
	return 0;
}
"""


@pytest.fixture
def gpu_node(layer_store):
    with LiveNode(layer_store, options=DEVICES).running() as node:
        yield node


@pytest.fixture
async def functions(gpu_node):
    async with gpu_node.client() as client:
        await client.images.debian(IMAGE, "bookworm", PACKAGES)
        yield client.functions


def script(functions, source: str, **options):
    return functions.call(
        "script", source=source, interpreter="python3", image=IMAGE, wait=120, **options
    )


async def told(functions, source: str, **options):
    """What a script prints, as JSON."""
    result = await script(functions, source, **options)
    assert result.exit_code == 0, result
    return json.loads(result.stdout)


def program(functions, *argv: str, **options):
    return functions.call("program", argv=argv, image=IMAGE, **({"wait": 120} | options))


def kernel(functions, *args: str, **options):
    return functions.call(
        "compile_run",
        language="c",
        sources={"k.c": KERNEL},
        args=args,
        image=IMAGE,
        wait=120,
        **options,
    )


async def test_only_a_call_that_holds_the_device_can_open_it(functions) -> None:
    found, env = await told(functions, LOOK, device="gpu")
    assert found == "opened, ENOSPC"  # the control: it can be opened
    assert env == ["full", "card0", str(8 << 30)]
    for isolation in Isolation:
        found, env = await told(functions, LOOK, isolation=isolation)
        assert (found, env) == ("ENOENT", [None, None, None])
        # Nor can it make one that opens, wherever it may write.
        assert set(await told(functions, MAKE, isolation=isolation)) <= REFUSED
        assert set(await told(functions, MAKE, isolation=isolation, device="gpu")) <= REFUSED


async def test_call_of_a_warm_interpreter_holds_the_device_and_finds_its_variables(
    functions,
) -> None:
    """The modules are imported before any call, in a process that holds nothing."""
    code = (
        LOOK.partition("env = ")[0]
        + "import sys\ndef main(name):\n    return ("
        + ("opened('/dev/fakegpu'), os.environ.get(name), 'decimal' in sys.modules)")
    )
    options = {"code": code, "image": IMAGE, "wait": 120, "modules": ["decimal"]}
    with_it = await functions.call("python", args=["SKERRY_DEVICE"], device="gpu", **options)
    assert with_it.value == ["opened, ENOSPC", "card0", True], with_it
    without = await functions.call("python", args=["SKERRY_DEVICE"], **options)
    assert without.value == ["ENOENT", None, True], without
    assert with_it.worker != without.worker


async def test_program_is_compiled_without_the_device_and_runs_with_it(functions) -> None:
    result = await kernel(functions, device="gpu", fetch=["a.out"])
    assert (result.exit_code, result.stdout) == (0, b"0 on card0\n"), result
    assert result.compile.ok
    assert result.files["a.out"].startswith(b"\x7fELF")
    assert result.device.id == "card0"
    pools = {pool.device: pool for pool in await functions.pools()}
    assert (pools[None].calls, pools["card0"].calls) == (1, 1)  # a step each
    alone = await kernel(functions)
    assert (alone.exit_code, alone.device) == (1, None)  # it finds none


async def test_many_compile_while_the_device_is_held_and_then_hold_it_one_after_the_other(
    functions,
) -> None:
    async def compiled() -> int:
        return next(pool.calls for pool in await functions.pools() if pool.device is None)

    await kernel(functions, device="gpu")  # containers are there
    holding = asyncio.ensure_future(program(functions, "sleep", "600", device="gpu"))
    await until_held(functions)
    calls = [asyncio.ensure_future(kernel(functions, "50", device="gpu")) for _ in range(4)]
    async with asyncio.timeout(100):
        while await compiled() < 5:  # noqa: ASYNC110 - another process counts
            await asyncio.sleep(0.05)
    assert not holding.done()  # and it holds the device all the time
    assert not any(call.done() for call in calls)
    began = time.monotonic()
    holding.cancel()
    results = await asyncio.gather(*calls)
    took = time.monotonic() - began
    for result in results:
        assert (result.exit_code, result.stdout) == (0, b"0 on card0\n"), result
        assert result.device.queued_s > 0
        assert result.device.held_s >= 0.05
    # What they held it for lies behind the end of who held it, and one behind the other.
    assert sum(result.device.held_s for result in results) < took


async def until_held(functions) -> None:
    """Returns when somebody holds the device, asked by one who does not want to wait for it."""
    for _ in range(200):
        try:
            await program(functions, "true", device="gpu", wait=0)
        except Overloaded as error:
            if error.fields["limit"] == "gpu":
                return
        await asyncio.sleep(0.05)
    raise AssertionError("nobody ever held it")


async def test_exclusive_calls_never_overlap_and_shared_ones_do(functions) -> None:
    async def spans(device):
        calls = (told(functions, SPAN, device=device) for _ in range(3))
        return sorted(await asyncio.gather(*calls))

    await told(functions, SPAN, device="gpu")
    alone = await spans("gpu")
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(alone)), alone
    together = await spans(DeviceClaim(mode=DeviceMode.SHARED, share=0.33))
    assert any(one[1] > two[0] for one, two in itertools.pairwise(together)), together


async def test_device_is_free_again_however_its_call_ended(functions) -> None:
    hard = await program(functions, "sh", "-c", "kill -9 $$", device="gpu")
    assert hard.signal == 9
    # One that leaves a process behind which has the device open: it ends with the call's cell.
    left = "exec 3<> /dev/fakegpu; setsid sleep 600 & exit 0"
    assert (await program(functions, "sh", "-c", left, device="gpu")).exit_code == 0
    late = await program(functions, "sleep", "600", device="gpu", wall=0.5)
    assert late.limit == "wall"
    gone = asyncio.ensure_future(program(functions, "sleep", "600", device="gpu"))
    await until_held(functions)
    gone.cancel()
    await asyncio.wait((gone,))
    assert (await program(functions, "true", device="gpu")).exit_code == 0


async def test_device_that_the_node_has_not_is_refused(functions) -> None:
    with pytest.raises(InvalidRequest, match="no h100; it has: gpu"):
        await program(functions, "true", device="h100")


async def test_restarted_node_lends_the_device_again_and_nothing_holds_it(
    gpu_node, functions
) -> None:
    calling = asyncio.ensure_future(program(functions, "sleep", "600", device="gpu"))
    await until_held(functions)
    gpu_node.kill()
    with pytest.raises((SkerryError, OSError)):
        await calling
    gpu_node.start()
    async with gpu_node.client() as client:
        found, _ = await told(client.functions, LOOK, device="gpu")
        assert found == "opened, ENOSPC"
