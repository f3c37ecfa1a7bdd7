"""Large images over a slow store: read on demand beside downloaded and unpacked whole.

Usage: python bench/layers.py [--quick] [--json] [--out FILE]

The images are made once, of real Debian and PyPI packages, and kept below SKERRY_CACHE in the directory
of a real S3 server (SeaweedFS). The product is a node whose layer store is that server, behind a link
of 200 MB/s and 2 ms in a process of its own. The peer does what `docker pull` does: one compressed
archive of each image (zstd -3) comes over the same link from the same server, is unpacked by `tar`, and
the command runs there under `bwrap` with an overlay. Both begin with nothing on this disk; the page
cache of what they wrote is theirs to use. Parties take turns.

Cold start, one image of more than 2 GB (`cold_*`): from just before the sandbox is asked for (the peer:
before the download) until the result of a Python test run (pytest over a module of sympy's tests) is
there.
- `cold_speedup_vs_eager`: the peer's time by ours, medians. `_prefetch`: the same with the profile that
  a first run left (`lazy.profile`), on a node that has nothing else.
- `fetched_fraction`: bytes of bodies that came over the link, by the content of the image.
- `cold_write_ratio`: bytes that the peer's tree takes on disk, by those of our cache.

Burst (`burst_*`): 64 sandboxes over 8 images at once, as a job starts them, each image for as many
sandboxes as the paper's fan-out gives (median 3, at most 28); every sandbox runs one test module. From
just before the first is asked for until the last result. The peer fetches and unpacks each image once a
node, 4 at a time, and runs at most 16 at once.
- `burst_speedup_vs_eager`, `burst_write_ratio`.

Composition (`compose_*`): 16 sandboxes, each a base with a workspace and a toolkit, run 20 recorded
tool calls; the peer unpacks workspace and toolkit as archives into each sandbox first (the paper's
other way).
- `compose_speedup_vs_tar`: the peer's time by ours, from the first create to the last result.

Warm (`warm_*`): a file of 256 MiB of a verified layer, read by `cat` inside, once its chunks are in the
node's cache. `warm_read_ratio_to_local`: MiB/s with the page cache filled, by those of the same file on
a local directory's layer. `lazy_read_mib_s`: the first read after the page cache was dropped, through
FUSE from the cache on disk; beside it the same of the local layer.

Catalogue (`catalogue_*`): 103 toolkits and 1,000 workspaces, small ones, in one store. Listing them; a
create with a pair drawn at random, whose layers are mounted for it, beside one of the base alone; one
toolkit made anew, which touches nothing else; what the store takes, beside an image for each pair.

Commits and forks (`commit_*`, `fork8_*`): see `commit.py`, which runs alone too.
"""

import asyncio
import io
import os
import random
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import commit
from harness import BenchmarkFailedError, RawLog
from product import STATE, OwnNode, own_client
from report import Result, run

RATE = 200e6
LATENCY_S = 0.002
MIB = 1 << 20
HOME = Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry"), "bench-layers")
PYTHON = "usr/lib/python3/dist-packages"
PACKAGES = (
    "tensorflow-cpu", "xgboost", "jaxlib", "pyarrow", "opencv-python-headless", "scipy", "pandas",
    "scikit-learn", "spacy", "botocore", "transformers", "sympy", "plotly", "matplotlib", "pytest",
    "hypothesis",
)  # fmt: skip
# Of each image of the burst: its packages, and the test module (or module of its own) that is run.
IMAGES = {
    "sympy": (("sympy",), "sympy.core.tests.test_basic"),
    "scipy": (("scipy",), "scipy.cluster.tests.test_vq"),
    "pandas": (("pandas",), "pandas.tests.libs.test_hashtable"),
    "sklearn": (("scikit-learn",), "sklearn.utils.tests.test_encode"),
    "matplotlib": (("matplotlib",), "matplotlib.tests.test_cbook"),
    "plotly": (("plotly", "numpy"), "plotly.io"),
    "botocore": (("botocore",), "botocore.session"),
    "spacy": (("spacy",), "spacy.tests.test_cli"),
}
FAN_OUT = (28, 12, 7, 5, 4, 3, 3, 2)  # 64
COLD_TEST = "sympy.core.tests.test_basic"
TEST = "python3 -m pytest -q -x -p no:cacheprovider --pyargs {0} 2>&1 || python3 -c 'import {0}'"
CALLS = 20
TOOLKIT_FILES = 400
WARM_MIB = 256
PULL_BYTES = 8 << 20
RECORD_S = 15.0
AT_ONCE = 16
SANDBOX = {"image": "debian:12", "cpu": 2, "memory": "2GiB"}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    cold_rounds: int
    burst: bool
    composed: int


QUICK, FULL = Plan(1, False, 8), Plan(3, True, 16)


# --- What there is to read: made once ---


@contextmanager
def server() -> Iterator[Any]:
    """The S3 server, with what earlier runs put there."""
    from skerry.testing.s3_server import S3Server, missing

    if reason := missing():
        raise BenchmarkFailedError(reason)
    HOME.mkdir(parents=True, exist_ok=True)
    one = S3Server(place=str(HOME / "s3"))
    try:
        yield one.start()
    finally:
        one.kill()


def install(packages: Sequence[str], target: Path) -> None:
    """Install packages of the index that this machine uses, with their dependencies and pytest."""
    target.mkdir(parents=True)
    argv = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(target)]
    subprocess.run([*argv, *packages, "pytest"], check=True, capture_output=True)


class Bench:
    """Nodes of one state directory after another, one S3 server, and the archives of the peer."""

    def __init__(self, s3: Any, node: OwnNode, scratch: Path) -> None:
        self.s3, self.node, self.scratch = s3, node, scratch
        for name, secret in (("access", s3.keys.access), ("secret", s3.keys.secret)):
            path = scratch / name
            path.touch(mode=0o600)
            path.write_text(secret)

    def config(self, endpoint: str, *, prefetch: bool = False, record_s: float = 0.0) -> str:
        """Return the configuration of a node on the bucket."""
        return (
            f'store = "s3://{self.s3.bucket}/bench"\n[s3]\nendpoint = "{endpoint}"\n'
            f'access_key = "file:{self.scratch}/access"\nsecret_key = "file:{self.scratch}/secret"\n'
            f"[lazy.profile]\nprefetch = {str(prefetch).lower()}\nrecord_s = {record_s}\n"
        )

    def objects(self, endpoint: str) -> Any:
        """Return a client of the bucket's part for the peer's archives."""
        from skerry.images.objects.s3 import S3Objects
        from skerry.images.objects.s3_options import S3Options

        options = S3Options(
            endpoint=endpoint,
            access_key=f"file:{self.scratch}/access",
            secret_key=f"file:{self.scratch}/secret",
        )
        return S3Objects(f"s3://{self.s3.bucket}/peer", options)

    async def fresh(self, config: str) -> None:
        """Start a node that has never seen a byte."""
        await self.node.stop()
        shutil.rmtree(STATE, ignore_errors=True)
        await self.node.start(config)

    # --- set-up ---

    async def prepare(self, plan: Plan) -> None:
        """Make what the bucket lacks: layers, and the same as archives."""
        await self.fresh(self.config(self.s3.endpoint))
        objects = self.objects(self.s3.endpoint)
        async with self.node.client() as client:
            await client.images.debian("debian:12", "bookworm")
            if objects.stat("base.tar.zst") is None:
                archive = max(HOME.parent.glob("debian/*.tar"))
                await asyncio.to_thread(self._archive, objects, "base", archive)
            wanted = {"large": PACKAGES} | ({n: IMAGES[n][0] for n in IMAGES} if plan.burst else {})
            for name, packages in wanted.items():
                await self._layer(client, objects, name, packages)
            await self._small(client)

    async def _layer(self, client: Any, objects: Any, name: str, packages: Sequence[str]) -> None:
        if objects.stat(f"{name}.tar.zst") is not None:
            return
        root = self.scratch / name
        await asyncio.to_thread(install, packages, root / PYTHON)
        await client.images.import_directory(f"workspace/bench-{name}", root)
        await asyncio.to_thread(self._archive, objects, name, root)
        shutil.rmtree(root)

    def _archive(self, objects: Any, name: str, source: Path) -> None:
        """Put a tar or a tree into the bucket as the peer's archive."""
        target = self.scratch / f"{name}.tar.zst"
        if source.is_dir():
            argv = ["tar", "-C", str(source), "-I", "zstd -3 -T0 -q", "-cf", str(target), "."]
        else:
            argv = ["zstd", "-3", "-T0", "-q", "-f", str(source), "-o", str(target)]
        subprocess.run(argv, check=True)
        objects.put_file(f"{name}.tar.zst", str(target))
        target.unlink()

    async def _small(self, client: Any) -> None:
        """Make a toolkit of many files, and a layer with one large one."""
        for name, files in (("toolkit/bench-tool", TOOLKIT_FILES), ("workspace/bench-file", 0)):
            try:
                await client.images.inspect(name)
            except Exception as error:
                if type(error).__name__ != "NotFound":
                    raise
                root = self.scratch / "small"
                (root / "opt/tool").mkdir(parents=True)
                for number in range(files):
                    (root / "opt/tool" / f"m{number}.py").write_text(f"X = {number}\n" * 200)
                if not files:
                    with (root / "opt/file").open("wb") as file:
                        for _ in range(WARM_MIB):
                            file.write(os.urandom(MIB))
                await client.images.import_directory(name, root)
                shutil.rmtree(root)

    # --- the peer: everything first ---

    def pull(self, objects: Any, name: str, target: Path) -> None:
        """Fetch and unpack a base and what lies on it, as the archives come."""
        target.mkdir(parents=True, exist_ok=True)
        for archive in ("base", name):
            key = f"{archive}.tar.zst"
            size = objects.stat(key).size
            argv = ["tar", "-C", str(target), "-I", "zstd -d -q", "-xpf", "-"]
            unpack = subprocess.Popen(argv, stdin=subprocess.PIPE)
            for offset in range(0, size, PULL_BYTES):
                unpack.stdin.write(objects.read(key, offset, min(PULL_BYTES, size - offset)))
            unpack.stdin.close()
            if unpack.wait():
                raise BenchmarkFailedError(f"the peer cannot unpack {archive}")


def inside(root: Path, command: str) -> bytes:
    """Run a command in an unpacked tree, as the peer does."""
    argv = [
        "bwrap",
        "--bind",
        str(root),
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--tmpfs",
        "/tmp",
    ]
    argv += [
        "--unshare-all",
        "--die-with-parent",
        "--clearenv",
        "--setenv",
        "PATH",
        "/usr/bin:/bin",
    ]
    done = subprocess.run([*argv, "sh", "-c", command], capture_output=True, check=False)
    if done.returncode:
        raise BenchmarkFailedError(
            f"the peer failed: {done.stdout[-400:]!r} {done.stderr[-400:]!r}"
        )
    return done.stdout


def taken(*places: str | Path) -> int:
    """Return the bytes that trees take on disk."""
    present = [str(place) for place in places if Path(place).exists()]
    said = subprocess.run(["du", "-sc", "-B1", *present], capture_output=True, check=True).stdout
    return int(said.split()[-2])


# --- Cold start ---


async def first_result(client: Any, name: str, test: str) -> None:
    """Make a sandbox of a base and a layer, run one test module in it, and end it."""
    sandbox = await client.sandboxes.create(layers=[f"workspace/bench-{name}"], **SANDBOX)
    result = await sandbox.run(TEST.format(test), timeout=300)
    if not result.ok:
        raise BenchmarkFailedError(f"{name}: {result.text[-400:]} {result.error_text[-400:]}")
    await sandbox.destroy()


async def cold(bench: Bench, far: Any, result: Result, raw: RawLog, plan: Plan) -> None:
    """Measure one large image from nothing, parties in turn."""
    objects = bench.objects(far.endpoint)
    clocks: dict[str, list[float]] = {"eager": [], "demand": [], "prefetch": []}
    seen: dict[str, list[tuple[int, int]]] = {name: [] for name in clocks}  # fetched, written
    size = 0
    for number in range(plan.cold_rounds):
        order = list(clocks)
        for party in order[number % 3 :] + order[: number % 3]:
            if party == "eager":
                tree = bench.scratch / "pulled"
                far.reset()
                start = time.perf_counter()
                await asyncio.to_thread(bench.pull, objects, "large", tree)
                await asyncio.to_thread(inside, tree, TEST.format(COLD_TEST))
                clocks[party].append(time.perf_counter() - start)
                seen[party].append((far.counts().down, taken(tree)))
                shutil.rmtree(tree)
            else:
                if party == "prefetch":
                    await recorded(bench, far)
                await bench.fresh(bench.config(far.endpoint, prefetch=party == "prefetch"))
                async with bench.node.client() as client:
                    layer = await client.images.inspect("workspace/bench-large")
                    base = await client.images.inspect("debian:12")
                    size = sum(one.data_bytes + one.size_bytes for one in (layer, base))
                    far.reset()
                    start = time.perf_counter()
                    await first_result(client, "large", COLD_TEST)
                    clocks[party].append(time.perf_counter() - start)
                    fetched = far.counts().down
                seen[party].append((fetched, taken(f"{STATE}/chunks", f"{STATE}/layers")))
            sample = {
                "s": clocks[party][-1],
                "down": seen[party][-1][0],
                "disk": seen[party][-1][1],
            }
            raw.write(f"{party} cold", number, [sample])
    middle = {party: statistics.median(times) for party, times in clocks.items()}
    rounds = plan.cold_rounds
    result.add("cold_image_mib", size / MIB, "MiB", 1, "higher")
    result.add("cold_s", middle["demand"], "s", rounds, "lower")
    result.add_peer("eager", "cold_s", middle["eager"])
    result.add("cold_s_prefetch", middle["prefetch"], "s", rounds, "lower")
    for party, suffix in (("demand", ""), ("prefetch", "_prefetch")):
        fetched, written = (statistics.median(values) for values in zip(*seen[party], strict=True))
        ratio = middle["eager"] / middle[party]
        result.add(f"cold_speedup_vs_eager{suffix}", ratio, "x", rounds, "higher")
        result.add(f"fetched_fraction{suffix}", fetched / size, "", rounds, "lower")
        whole = statistics.median(disk for _, disk in seen["eager"])
        result.add(f"cold_write_ratio{suffix}", whole / written, "x", rounds, "higher")
    result.add_peer("eager", "fetched_fraction", seen["eager"][0][0] / size)


async def recorded(bench: Bench, far: Any) -> None:
    """Let a node run the test once and leave its profile in the store."""
    await bench.fresh(bench.config(far.endpoint, record_s=RECORD_S))
    async with bench.node.client() as client:
        await first_result(client, "large", COLD_TEST)
        await asyncio.sleep(RECORD_S + 5)


# --- A burst ---


async def burst(bench: Bench, far: Any, result: Result, raw: RawLog) -> None:
    """Measure 64 sandboxes over 8 images from nothing, one party after the other."""
    jobs = [name for name, count in zip(IMAGES, FAN_OUT, strict=True) for _ in range(count)]
    objects = bench.objects(far.endpoint)
    tree = bench.scratch / "pulled"
    pulls, runs = asyncio.Semaphore(4), asyncio.Semaphore(AT_ONCE)
    images: dict[str, asyncio.Task[None]] = {}

    async def pull(name: str) -> None:
        async with pulls:
            await asyncio.to_thread(bench.pull, objects, name, tree / name)

    async def eager(name: str) -> None:
        await images.setdefault(name, asyncio.ensure_future(pull(name)))
        async with runs:
            await asyncio.to_thread(inside, tree / name, TEST.format(IMAGES[name][1]))

    start = time.perf_counter()
    await asyncio.gather(*map(eager, jobs))
    theirs, their_disk = time.perf_counter() - start, taken(tree)
    shutil.rmtree(tree)
    await bench.fresh(bench.config(far.endpoint))
    async with bench.node.client() as client:

        async def demand(name: str) -> None:
            async with runs:
                await first_result(client, name, IMAGES[name][1])

        start = time.perf_counter()
        await asyncio.gather(*map(demand, jobs))
        ours = time.perf_counter() - start
    disk = taken(f"{STATE}/chunks", f"{STATE}/layers")
    raw.write("burst", 0, [{"ours": ours, "eager": theirs, "disk": disk, "eager_disk": their_disk}])
    result.add("burst_s", ours, "s", len(jobs), "lower")
    result.add_peer("eager", "burst_s", theirs)
    result.add("burst_speedup_vs_eager", theirs / ours, "x", len(jobs), "higher")
    result.add("burst_write_ratio", their_disk / disk, "x", len(jobs), "higher")


# --- Composition ---


async def composed(bench: Bench, result: Result, raw: RawLog, count: int) -> None:
    """Measure sandboxes with a workspace and a toolkit: as layers, and unpacked into each."""
    archives = []
    for name in ("sympy", "toolkit"):
        root = bench.scratch / name
        if name == "sympy":
            await asyncio.to_thread(install, ("sympy",), root / PYTHON)
        else:
            (root / "opt/tool").mkdir(parents=True)
            for number in range(TOOLKIT_FILES):
                (root / "opt/tool" / f"m{number}.py").write_text(f"X = {number}\n" * 200)
        archive = bench.scratch / f"{name}.tar.gz"
        argv = ["tar", "-C", str(root), "-czf", str(archive), "."]
        await asyncio.to_thread(subprocess.run, argv, check=True)
        archives.append(archive)
    await bench.fresh("")
    calls = [
        f"grep -rl 'class Basic' /{PYTHON}/sympy/core | head -3",
        f"sed -n '1,20p' /{PYTHON}/sympy/core/basic.py",
        "ls /opt/tool | wc -l",
        "python3 -c 'import sympy; print(sympy.simplify(\"x**2 - x**2\"))'",
    ]
    async with bench.node.client() as client:
        await client.images.debian("debian:12", "bookworm")
        layers = []
        for name, archive in zip(("workspace/c-sympy", "toolkit/c-tool"), archives, strict=True):
            await client.images.import_tar(name, archive)
            layers.append(name)

        async def replay(unpack: bool) -> None:
            sandbox = await client.sandboxes.create(layers=() if unpack else layers, **SANDBOX)
            for archive in archives if unpack else ():
                await sandbox.files.upload(archive, "/tmp/layer.tar.gz")
                await sandbox.run("tar -C / -xzf /tmp/layer.tar.gz", timeout=300)
            for number in range(CALLS):
                done = await sandbox.run(calls[number % len(calls)], timeout=300)
                if not done.ok:
                    raise BenchmarkFailedError(done.error_text[-400:])
            await sandbox.destroy()

        clocks = {}
        for party, unpack in (("tar", True), ("layers", False)):
            start = time.perf_counter()
            await asyncio.gather(*(replay(unpack) for _ in range(count)))
            clocks[party] = time.perf_counter() - start
    raw.write("composed", 0, [clocks])
    result.add("compose_s", clocks["layers"], "s", count, "lower")
    result.add_peer("tar", "compose_s", clocks["tar"])
    result.add("compose_speedup_vs_tar", clocks["tar"] / clocks["layers"], "x", count, "higher")


# --- Warm ---

DROP = "import os; f = os.open('/opt/file', 0); os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)"


async def reading(client: Any) -> tuple[list[float], list[float]]:
    """Return MiB/s of reads with pages in memory, and right after they were dropped."""
    warm, dropped = [], []
    sandbox = await client.sandboxes.create(layers=["workspace/bench-file"], **SANDBOX)
    await sandbox.run("cat /opt/file > /dev/null", timeout=300)
    for _ in range(5):
        await sandbox.run(["python3", "-c", DROP])
        for found in (dropped, warm):
            start = time.perf_counter()
            await sandbox.run("cat /opt/file > /dev/null", timeout=300)
            found.append(WARM_MIB / (time.perf_counter() - start))
    await sandbox.destroy()
    return warm, dropped


async def warm(bench: Bench, far: Any, result: Result, raw: RawLog) -> None:
    """Measure reads of a cached lazy layer beside the same layer on a local disk."""
    await bench.fresh(bench.config(far.endpoint))
    async with bench.node.client() as client:
        lazy, lazy_dropped = await reading(client)
    await bench.fresh("")
    async with bench.node.client() as client:
        await client.images.debian("debian:12", "bookworm")
        root = bench.scratch / "warm"
        (root / "opt").mkdir(parents=True)
        with (root / "opt/file").open("wb") as file:
            for _ in range(WARM_MIB):
                file.write(os.urandom(MIB))
        await client.images.import_directory("workspace/bench-file", root)
        local, local_dropped = await reading(client)
    raw.write("warm", 0, [{"lazy": lazy, "local": local}])
    median = statistics.median
    result.add("warm_read_ratio_to_local", median(lazy) / median(local), "x", 5, "higher")
    result.add("lazy_read_mib_s", median(lazy_dropped), "MiB/s", 5, "higher")
    result.add_peer("local layer", "lazy_read_mib_s", median(local_dropped))


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


async def measure(result: Result, quick: bool) -> None:
    """Take all figures."""
    from skerry.testing.link import link

    plan = QUICK if quick else FULL
    with ExitStack() as stack:
        s3 = stack.enter_context(server())
        scratch = Path(tempfile.mkdtemp(prefix="skerry-layers-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        raw = stack.enter_context(RawLog("layers"))
        async with OwnNode() as node:
            bench = Bench(s3, node, scratch)
            await bench.prepare(plan)
            with link(s3.port, rate=RATE, latency_s=LATENCY_S) as far:
                await cold(bench, far, result, raw, plan)
                if plan.burst:
                    await burst(bench, far, result, raw)
                await warm(bench, far, result, raw)
            await composed(bench, result, raw, plan.composed)
        if plan.burst:
            await catalogue(result, raw)
        result.notes.append("the peer runs its commands under bwrap, without limits or quota")
    await commit.measure(result, quick)


if __name__ == "__main__":
    sys.exit(run("layers", __doc__ or "", measure))
