"""Composed layers beside archives unpacked per sandbox, and a catalogue of many small layers.

`layers.py` says what is measured, and when its clocks start and end.
"""

import asyncio
import io
import random
import statistics
import tarfile
import time
from typing import Any

from harness import BenchmarkFailedError, RawLog
from layers_cold import SANDBOX
from layers_images import (
    ARCHIVES,
    ARCHIVES_PATH,
    MIB,
    PYTHON,
    TOOLKIT,
    TOOLKIT_PATH,
    WORKSPACE,
    Bench,
)
from product import own_client
from report import Result

_AT = f"/{PYTHON}/sklearn"
_TOOL = f"PYTHONPATH=/{TOOLKIT_PATH} python3 -m"
_RUN = "python3 -m pytest -q -x -p no:cacheprovider"
_TRY = "from sklearn.preprocessing import LabelEncoder as L; print(L().fit([3, 1, 2]).classes_)"
# How an agent goes about a bug, in the order of such a run: look, find, read, try, change, check, test.
CALLS = (
    f"ls {_AT} | head -50",
    f"grep -rn 'def check_array' {_AT}/utils | head -5",
    f"sed -n '1,120p' {_AT}/utils/validation.py",
    f"find {_AT}/utils -name 'test_*.py' | head -20",
    "python3 -c 'import sklearn; print(sklearn.__version__)'",
    f"grep -n 'class LabelEncoder' {_AT}/preprocessing/_label.py",
    f"sed -n '100,220p' {_AT}/preprocessing/_label.py",
    f"echo '{_TRY}' > /tmp/try.py && python3 /tmp/try.py",
    f"sed -i 's/Encode target labels/Encode  target labels/' {_AT}/preprocessing/_label.py",
    f"{_TOOL} ruff check --isolated {_AT}/preprocessing/_label.py | tail -3",
    f"{_RUN} --pyargs sklearn.utils.tests.test_encode",
    f"grep -rn '_unique(' {_AT}/preprocessing {_AT}/utils | head",
    f"sed -n '1,80p' {_AT}/utils/_encode.py",
    f"sed -i 's/Helper function/A helper function/' {_AT}/utils/_encode.py",
    f"{_TOOL} ruff format --isolated --diff {_AT}/utils/_encode.py | head -3",
    f"{_TOOL} mypy --version",
    f"{_RUN} --pyargs sklearn.utils.tests.test_encode",
    "python3 /tmp/try.py",
    f"ls -l {_AT}/utils/_encode.py {_AT}/preprocessing/_label.py",
    "rm /tmp/try.py",
)


async def composed(bench: Bench, far: Any, result: Result, raw: RawLog, count: int) -> None:
    """Measure sandboxes with a workspace and a toolkit: as layers, and unpacked into each."""
    clocks: dict[str, float] = {}
    for party, work in (("tar", unpacked), ("layers", layered)):
        await bench.fresh(bench.config(far.endpoint))
        async with bench.node.client() as client:
            start = time.perf_counter()
            await asyncio.gather(*(work(client) for _ in range(count)))
            clocks[party] = time.perf_counter() - start
    raw.write("composed", 0, [clocks])
    result.add("compose_s", clocks["layers"], "s", count, "lower")
    result.add_peer("tar", "compose_s", clocks["tar"])
    result.add("compose_speedup_vs_tar", clocks["tar"] / clocks["layers"], "x", count, "higher")


async def layered(client: Any) -> None:
    """Make a sandbox of three layers, and work in it."""
    layers = [f"workspace/{WORKSPACE}", f"toolkit/{TOOLKIT}"]
    sandbox = await client.sandboxes.create(layers=layers, **SANDBOX)
    await replay(sandbox)


async def unpacked(client: Any) -> None:
    """Make a sandbox of the base, unpack the others there, and work in it."""
    sandbox = await client.sandboxes.create(layers=[f"workspace/{ARCHIVES}"], **SANDBOX)
    for name in (WORKSPACE, TOOLKIT):
        await call(sandbox, f"tar -C / -xzf /{ARCHIVES_PATH}/{name}.tar.gz")
    await replay(sandbox)


async def replay(sandbox: Any) -> None:
    """Run the recorded calls, and end the sandbox."""
    for command in CALLS:
        await call(sandbox, command)
    await sandbox.destroy()


async def call(sandbox: Any, command: str) -> None:
    """Run one call, which has to succeed."""
    done = await sandbox.run(command, timeout=300)
    if not done.ok:
        said = f"{done.text[-200:]} {done.error_text[-200:]}"
        raise BenchmarkFailedError(f"{command}: {done.exit_code} {said}")


# --- A catalogue ---


async def catalogue(result: Result, raw: RawLog) -> None:
    """Measure 103 toolkits and 1,000 workspaces, any two of which may be put on a base."""
    async with own_client() as client:
        base = await client.images.inspect("debian:12")
        many = asyncio.Semaphore(4)
        draw = random.Random(1)

        async def make(name: str, version: int) -> float:
            content = f"{name} {version}\n" * draw.randrange(50, 500)
            tar = tar_of({f"{name}/{number}.py": content for number in range(8)})
            async with many:
                start = time.perf_counter()
                await client.images.import_tar(name, tar)
                return time.perf_counter() - start

        tools = [f"toolkit/t{number}" for number in range(103)]
        works = [f"workspace/w{number}" for number in range(1000)]
        made = await asyncio.gather(*(make(name, 1) for name in tools + works))
        lists, creates, plain = [], [], []
        for _ in range(5):
            start = time.perf_counter()
            layers = await client.images.list()
            lists.append((time.perf_counter() - start) * 1e3)
        for _ in range(200):
            pair = [draw.choice(works), draw.choice(tools)]
            for found, chosen in ((creates, pair), (plain, [])):
                start = time.perf_counter()
                sandbox = await client.sandboxes.create(image="debian:12", layers=chosen)
                found.append((time.perf_counter() - start) * 1e3)
                await sandbox.destroy()
        updated = await make(tools[0], 2)
    size = sum(layer.total_bytes for layer in layers)
    small = (size - base.total_bytes) / (len(layers) - 1)
    whole = len(tools) * len(works) * (base.total_bytes + 2 * small)
    raw.write(
        "catalogue",
        0,
        [{"create": one, "plain": other} for one, other in zip(creates, plain, strict=True)],
    )
    result.add("catalogue_list_ms", statistics.median(lists), "ms", len(layers), "lower")
    result.add("catalogue_import_ms_p50", statistics.median(made) * 1e3, "ms", len(made), "lower")
    result.add("catalogue_update_ms", updated * 1e3, "ms", 1, "lower")
    result.add("catalogue_create_ms_p50", statistics.median(creates), "ms", len(creates), "lower")
    result.add_floor(
        "catalogue_create_ms_p50", statistics.median(plain), "the base alone, same run"
    )
    result.add("catalogue_store_mib", size / MIB, "MiB", len(layers), "lower")
    result.add_peer("an image for each pair", "catalogue_store_mib", whole / MIB)


def tar_of(files: dict[str, str]) -> io.BytesIO:
    """Return a tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"srv/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content.encode()))
    out.seek(0)
    return out
