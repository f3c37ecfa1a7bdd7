"""What `layers.py` reads: images of real packages, made once, as layers and as the peer's archives.

They lie below SKERRY_CACHE in the directory of a real S3 server, and stay there: making them takes
about fifteen minutes. Packages are installed as pip installs them, with their bytecode: without it the
first thing that a test run does is to compile, which is no question of layers.
"""

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import BenchmarkFailedError
from product import STATE, OwnNode

MIB = 1 << 20
HOME = Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry"), "bench-layers")
PYTHON = "usr/lib/python3/dist-packages"
PYTHON_OF_BASE = (3, 11)  # Debian 12's: wheels and bytecode are for one version
LARGE = "py-large"
WARM_MIB = 256
PULL_BYTES, PULLS_AHEAD = 8 << 20, 3


@dataclass(frozen=True)
class Image:
    """A workspace: what pip puts there, and the command that a first run is."""

    packages: Sequence[str]
    command: str


def tests(module: str) -> str:
    """Return the command that runs a package's own test module."""
    return f"python3 -m pytest -q -x -p no:cacheprovider --pyargs {module}"


def use(code: str) -> str:
    """Return the command that runs a line of Python, for packages whose wheel has no test that runs."""
    return f"python3 -c '{code}'"


IMAGES: Mapping[str, Image] = {
    LARGE: Image(
        (
            "tensorflow-cpu", "xgboost", "jaxlib", "pyarrow", "opencv-python-headless", "scipy",
            "pandas", "scikit-learn", "spacy", "botocore", "transformers", "sympy", "plotly",
            "matplotlib", "hypothesis",
        ),
        tests("sympy.core.tests.test_basic"),
    ),
    "py-sympy": Image(("sympy",), use('import sympy; print(sympy.integrate("x*sin(x)"))')),
    "py-scipy": Image(("scipy",), tests("scipy.cluster.tests.test_vq")),
    "py-pandas": Image(("pandas",), tests("pandas.tests.libs.test_hashtable")),
    "py-sklearn": Image(("scikit-learn",), tests("sklearn.utils.tests.test_encode")),
    "py-matplotlib": Image(
        ("matplotlib",), use('import matplotlib.pyplot as p; p.plot([1, 2]); p.savefig("/tmp/a.png")')
    ),
    "py-plotly": Image(
        ("plotly", "numpy"), use("import plotly.graph_objects as g; g.Figure(g.Bar(y=[1])).to_json()")
    ),
    "py-botocore": Image(
        ("botocore",),
        use('import botocore.session as s; s.get_session().create_client("s3", region_name="eu")'),
    ),
    "py-spacy": Image(("spacy",), use('import spacy; print(len(spacy.blank("en")("some words")))')),
}  # fmt: skip
BURST = tuple(name for name in IMAGES if name != LARGE)
# Code tools as an agent's toolkit has them: two type checkers, one of them on its own Node.js, a
# linter, a language server.
TOOLKIT = "py-tools"
TOOLKIT_PACKAGES = ("basedpyright", "ruff", "mypy", "python-lsp-server", "ipython")
TOOLKIT_PATH = "opt/tools"
WORKSPACE, ARCHIVES, ARCHIVES_PATH = "py-sklearn", "py-archives", "srv/archives"


@contextmanager
def server() -> Iterator[Any]:
    """The S3 server, with what earlier runs put there."""
    from skerry.testing.s3_server import S3Server, missing

    if reason := missing():
        raise BenchmarkFailedError(reason)
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BenchmarkFailedError(f"another run uses {HOME}") from None
        one = S3Server(place=str(HOME / "s3"))
        try:
            yield one.start()
        finally:
            one.kill()


def install(packages: Sequence[str], root: Path, place: str = PYTHON) -> None:
    """Put packages of the index that this machine uses, and pytest, where they will be below /."""
    if sys.version_info[:2] != PYTHON_OF_BASE:
        raise BenchmarkFailedError("the images are made with Python 3.11, as Debian 12 has it")
    target = root / place
    target.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(target)]
    subprocess.run([*pip, *packages, "pytest"], check=True, capture_output=True)
    # As pip compiles, but with the paths that the files will have. Some are meant not to compile.
    compiled = [sys.executable, "-m", "compileall", "-q", "-j", "2", "-s", str(root), "-p", "/"]
    subprocess.run([*compiled, str(target)], check=False, capture_output=True)


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
            f'store = "s3://{self.s3.bucket}/layers"\n[s3]\nendpoint = "{endpoint}"\n'
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

    async def prepare(self, *, burst: bool) -> None:
        """Make what the bucket lacks: layers, and the same as archives."""
        await self.fresh(self.config(self.s3.endpoint))
        objects = self.objects(self.s3.endpoint)
        async with self.node.client() as client:
            await client.images.debian("debian:12", "bookworm")
            if objects.stat("base.tar.zst") is None:
                archive = max(HOME.parent.glob("debian/*.tar"))
                await asyncio.to_thread(self._archive, objects, "base", archive)
            for name in (*BURST, LARGE) if burst else (LARGE,):
                await self._layer(client, objects, name)
            await self._composed(client, objects)
            await self._one_file(client)

    async def _layer(self, client: Any, objects: Any, name: str) -> None:
        """Make the archive of an image if the bucket has none, and of that the layer."""
        archive = f"{name}.tar.zst"
        if objects.stat(archive) is None:
            root = self.scratch / name
            await asyncio.to_thread(install, IMAGES[name].packages, root)
            await asyncio.to_thread(self._archive, objects, name, root)
            shutil.rmtree(root)
        if not await _is_there(client, f"workspace/{name}"):
            copy = self.scratch / archive
            await asyncio.to_thread(self._fetch, objects, copy)
            await client.images.import_tar(f"workspace/{name}", copy)
            copy.unlink()

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

    def _fetch(self, objects: Any, target: Path) -> None:
        """Copy an archive out of the bucket."""
        size = objects.stat(target.name).size
        with target.open("wb") as file:
            for offset in range(0, size, PULL_BYTES):
                file.write(objects.read(target.name, offset, min(PULL_BYTES, size - offset)))

    async def _composed(self, client: Any, objects: Any) -> None:
        """Make what is composed: a workspace, a toolkit, and both as archives in a layer."""
        await self._layer(client, objects, WORKSPACE)
        if await _is_there(client, f"workspace/{ARCHIVES}"):
            return
        place, archives = self.scratch / "composed", self.scratch / "archives"
        (archives / ARCHIVES_PATH).mkdir(parents=True)
        for name, packages, where in (
            (WORKSPACE, IMAGES[WORKSPACE].packages, PYTHON),
            (TOOLKIT, TOOLKIT_PACKAGES, TOOLKIT_PATH),
        ):
            await asyncio.to_thread(install, packages, place / name, where)
            target = archives / ARCHIVES_PATH / f"{name}.tar.gz"
            argv = ["tar", "-C", str(place / name), "-czf", str(target), "."]
            await asyncio.to_thread(subprocess.run, argv, check=True)
        await client.images.import_directory(f"toolkit/{TOOLKIT}", place / TOOLKIT)
        await client.images.import_directory(f"workspace/{ARCHIVES}", archives)
        shutil.rmtree(place)
        shutil.rmtree(archives)

    async def _one_file(self, client: Any) -> None:
        """Make a layer with one large file."""
        if not await _is_there(client, "workspace/bench-file"):
            root = self.scratch / "file"
            await asyncio.to_thread(one_file, root)
            await client.images.import_directory("workspace/bench-file", root)
            shutil.rmtree(root)

    # --- the peer: everything first ---

    def pull(self, objects: Any, name: str, target: Path) -> None:
        """Fetch an archive, some ranges ahead of what is being unpacked, and unpack it as it comes."""
        target.mkdir(parents=True)
        size = objects.stat(f"{name}.tar.zst").size

        def fetch(offset: int) -> bytes:
            length = min(PULL_BYTES, size - offset)
            return bytes(objects.read(f"{name}.tar.zst", offset, length))

        argv = ["tar", "-C", str(target), "-I", "zstd -d -q", "-xpf", "-"]
        unpack = subprocess.Popen(argv, stdin=subprocess.PIPE)
        with ThreadPoolExecutor(PULLS_AHEAD) as threads:
            coming: deque[Future[bytes]] = deque()
            for offset in range(0, size, PULL_BYTES):
                coming.append(threads.submit(fetch, offset))
                if len(coming) > PULLS_AHEAD:
                    unpack.stdin.write(coming.popleft().result())
            for last in coming:
                unpack.stdin.write(last.result())
        unpack.stdin.close()
        if unpack.wait():
            raise BenchmarkFailedError(f"the peer cannot unpack {name}")


async def _is_there(client: Any, name: str) -> bool:
    from skerry.errors import NotFound

    try:
        await client.images.inspect(name)
    except NotFound:
        return False
    return True


def one_file(root: Path) -> None:
    """Make a tree of one file of WARM_MIB that does not compress."""
    (root / "opt").mkdir(parents=True)
    with (root / "opt/file").open("wb") as file:
        for _ in range(WARM_MIB):
            file.write(os.urandom(MIB))


def inside(trees: Sequence[Path], command: str) -> bytes:
    """Run a command on unpacked trees, lowest first, with an upper of its own, as the peer does."""
    upper = Path(tempfile.mkdtemp(prefix="upper-", dir=trees[0].parent))
    for name in ("up", "work", "root"):
        (upper / name).mkdir()
    lowers = ":".join(map(str, reversed(trees)))
    options = f"lowerdir={lowers},upperdir={upper}/up,workdir={upper}/work"
    bwrap = ["bwrap", "--bind", f"{upper}/root", "/", "--dev", "/dev", "--proc", "/proc"]
    bwrap += ["--tmpfs", "/tmp", "--unshare-all", "--die-with-parent", "--clearenv"]
    bwrap += ["--setenv", "PATH", "/usr/bin:/bin", "sh", "-c", command]
    script = 'mount -t overlay overlay -o "$1" "$2" && shift 2 && exec "$@"'
    argv = ["unshare", "-m", "sh", "-c", script, "sh", options, f"{upper}/root", *bwrap]
    done = subprocess.run(argv, capture_output=True, check=False)
    shutil.rmtree(upper)
    if done.returncode:
        said = f"{done.stdout[-400:]!r} {done.stderr[-400:]!r}"
        raise BenchmarkFailedError(f"the peer failed: {said}")
    return done.stdout


def taken(*places: str | Path) -> int:
    """Return the bytes that trees take on disk."""
    present = [str(place) for place in places if Path(place).exists()]
    said = subprocess.run(["du", "-sc", "-B1", *present], capture_output=True, check=True).stdout
    return int(said.split()[-2])
