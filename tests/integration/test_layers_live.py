"""Layers as sandboxes see them: all that a tar may hold, pairs and single blobs, one mount a node."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import mmap
import os
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from skerry.errors import Fault, LayerDamaged
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import LayerManifest

pytestmark = pytest.mark.root

BIG = os.urandom(700_000)
HOLES = bytes(300_000) + b"middle" + bytes(300_000)
LOOK = """
import json, os, sys
top = b'/odd'
found = {}
for name in sorted(os.listdir(top)):
    info = os.lstat(top + b'/' + name)
    found[name.hex()] = [oct(info.st_mode), info.st_nlink, info.st_size, info.st_uid, info.st_ino]
xattrs = {key: os.getxattr('/odd/big', key).decode() for key in os.listxattr('/odd/big')}
holes = open('/odd/holes', 'rb').read() == bytes(300000) + b'middle' + bytes(300000)
same = open('/odd/big', 'rb').read() == open('/odd/hard', 'rb').read()
print(json.dumps([found, xattrs, holes, same, os.listdir('/etc/apt'),
                  os.path.exists('/etc/debian_version')]))
"""


@pytest.fixture
def library(layer_store, tmp_path) -> Iterator[ImageLibrary]:
    """A library beside the node's, on the same store; its layers are removed afterwards."""
    made = ImageLibrary(DirectoryStore(layer_store), Tools(), str(tmp_path / "scratch"))
    before = {item.name for item in made.list()}
    yield made
    for item in made.list():
        if item.name not in before:
            made.remove(item.name)


def layer(library: ImageLibrary, name: str, members: dict[str, object]) -> LayerManifest:
    """Members are contents (bytes) or fields of TarInfo (a dict, with `data` for the content)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, given in members.items():
            fields = dict(given) if isinstance(given, dict) else {"data": given}
            data = fields.pop("data", b"")
            info = tarfile.TarInfo(path)
            info.size = len(data)
            for key, value in fields.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
    out.seek(0)
    return library.import_tar(name, out)


async def test_everything_odd_of_a_tar_is_inside_as_it_should(node_client, library):
    async with await node_client.sandboxes.create() as plain:
        program = await plain.files.read("/usr/bin/id")
    manifest = layer(
        library,
        "toolkit/odd",
        {
            "odd": {"type": tarfile.DIRTYPE, "mode": 0o755},
            "odd/big": {"data": BIG, "pax_headers": {"SCHILY.xattr.user.color": "blue"}},
            "odd/hard": {"type": tarfile.LNKTYPE, "linkname": "odd/big"},
            "odd/id": {"data": program, "mode": 0o4755},
            "odd/null": {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
            "odd/block": {"type": tarfile.BLKTYPE, "devmajor": 7},
            "odd/fifo": {"type": tarfile.FIFOTYPE, "mode": 0o600},
            "odd/empty": {"data": b"", "uid": 12, "mode": 0o600},
            "odd/holes": HOLES,
            "odd/non\udcff\udcfe": b"name",
            "etc/.wh.debian_version": b"",
            "etc/apt/.wh..wh..opq": b"",
            "etc/apt/own": b"x",
        },
    )
    assert manifest.data_digest
    assert "device nodes dropped" in manifest.recipe["notes"]
    async with await node_client.sandboxes.create(layers=["toolkit/odd"]) as sandbox:
        said = await sandbox.run(["python3", "-c", LOOK])
        assert said.exit_code == 0, said.stderr
        found, xattrs, holes, same, apt, version = json.loads(said.stdout)
        names = {bytes.fromhex(name): facts for name, facts in found.items()}
        assert set(names) == {
            *(b"big", b"empty", b"fifo", b"hard", b"holes", b"id", b"non\xff\xfe")
        }
        assert names[b"big"] == names[b"hard"]
        assert names[b"big"][1:3] == [2, len(BIG)]
        assert names[b"id"][0] == "0o104755"
        assert names[b"empty"][:4] == ["0o100600", 1, 0, 12]
        assert xattrs == {"user.color": "blue"}
        assert holes
        assert same
        assert apt == ["own"]
        assert not version
        # Setuid works: the layer is mounted so, and the program is root's.
        ran = await sandbox.run(["/odd/id", "-u"], user="nobody")
        assert (ran.stdout, ran.exit_code) == (b"0\n", 0)
        # Who writes to one name of a file of a layer gets a file of its own, as with any overlay.
        assert (await sandbox.run("echo changed > /odd/hard")).exit_code == 0
        assert await sandbox.files.read("/odd/big") == BIG
        info = await sandbox.info()
        assert [(one.digest, one.mode) for one in info.mounts] == [
            (digest, "trusted") for digest in info.digests
        ]
        assert manifest.digest in info.digests


async def test_upper_layers_change_replace_and_delete_what_lower_ones_have(node_client, library):
    layer(
        library,
        "workspace/below",
        {
            "w/one": BIG,
            "w/two": {"type": tarfile.LNKTYPE, "linkname": "w/one"},
            "w/three": {"type": tarfile.LNKTYPE, "linkname": "w/one"},
            "w/dir/kept": b"kept",
            "w/dir/gone": b"gone",
            "w/opaque/hidden": b"hidden",
            "w/file": b"a file below",
            "w/tree/inner/deep": b"deep",
        },
    )
    layer(
        library,
        "toolkit/above",
        {
            "w/one": {"data": BIG[::-1], "mode": 0o600},  # one name of three
            "w/.wh.three": b"",
            "w/dir/.wh.gone": b"",
            "w/opaque/.wh..wh..opq": b"",
            "w/opaque/new": b"new",
            "w/file/now/a": b"directory",
            "w/.wh.tree": b"",
            "w/four": {"type": tarfile.LNKTYPE, "linkname": "w/one"},
        },
    )
    # A layer that brings back a name which one below it deletes.
    layer(library, "toolkit/top", {"w/tree/inner/other": b"other", "large": BIG})
    names = ["workspace/below", "toolkit/above", "toolkit/top"]
    async with await node_client.sandboxes.create(layers=names) as sandbox:
        said = await sandbox.run(
            "cd /w && find . | LC_ALL=C sort && stat -c '%n %h %a' one two four"
        )
        assert said.exit_code == 0, said.stderr
        assert said.stdout.decode().splitlines() == [
            *(
                ".",
                "./dir",
                "./dir/kept",
                "./file",
                "./file/now",
                "./file/now/a",
                "./four",
                "./one",
            ),
            *("./opaque", "./opaque/new", "./tree", "./tree/inner", "./tree/inner/other", "./two"),
            *("one 2 600", "two 3 644", "four 2 600"),
        ]
        assert await sandbox.files.read("/w/two") == BIG
        assert await sandbox.files.read("/w/four") == BIG[::-1]
        # What a sandbox deletes is gone, and what lies below a deleted directory does not come back.
        again = await sandbox.run(
            "rm -r /w/dir && mkdir /w/dir && ls -A /w/dir; rm /w/two; ls /w/two"
        )
        assert (again.stdout, again.exit_code) == (b"", 2)


async def test_layers_without_data_mount_beside_those_with(node_client, library):
    kinds = {
        "empty": {},
        "directories": {"only/a/b": {"type": tarfile.DIRTYPE, "mode": 0o700}},
        "small": {"small": b"s"},
        "nothing": {"zero": b""},
        "pair": {"large": BIG},
    }
    made = {name: layer(library, f"workspace/{name}", dict(one)) for name, one in kinds.items()}
    assert [name for name, one in made.items() if one.data_digest] == ["pair"]
    names = [f"workspace/{name}" for name in kinds]
    async with await node_client.sandboxes.create(layers=names) as sandbox:
        said = await sandbox.run(
            "stat -c '%n %s %A' /only/a/b /small /zero /large && cksum < /large"
        )
        assert said.exit_code == 0, said.stderr
        assert said.stdout.splitlines()[1:4] == [
            b"/small 1 -rw-r--r--",
            b"/zero 0 -rw-r--r--",
            b"/large 700000 -rw-r--r--",
        ]
        assert await sandbox.files.read("/large") == BIG


COUNT = """
import os
found = [int(name) for top, _, names in os.walk('/many') for name in names]
good = all(open(f'/many/{a // 1000}/{a}').read() == f'{a}\\n' * (1 + a % 7) for a in found)
print(len(set(found)), good)
"""


@pytest.mark.slow
async def test_hundred_thousand_files_are_all_there(node_client, library):
    members: dict[str, object] = {
        f"many/{at // 1000}/{at}": b"%d\n" % at * (1 + at % 7) for at in range(100_000)
    }
    manifest = layer(library, "workspace/many", members)
    assert manifest.files == 100_102
    # Blocks of 4 KiB would make 400 MB of it; short files lie beside their inodes.
    assert manifest.data_digest is None
    assert manifest.total_bytes < 16 << 20
    async with await node_client.sandboxes.create(layers=["workspace/many"]) as sandbox:
        said = await sandbox.run(["python3", "-c", COUNT], timeout=120)
        assert said.stdout == b"100000 True\n", said.stderr


class LargeTar:
    """An archive with one file: zeros, and a few bytes at its end."""

    def __init__(self, size: int, end: bytes) -> None:
        info = tarfile.TarInfo("large")
        info.size = size
        self.parts = [info.tobuf(tarfile.PAX_FORMAT), size - len(end), end]
        self.parts.append(bytes(-size % 512 + 1024))

    def read(self, size: int = -1, /) -> bytes:
        assert size > 0
        while self.parts:
            head, *rest = self.parts
            if isinstance(head, int):
                piece = bytes(min(head, size))
                self.parts = [head - len(piece), *rest]
            else:
                piece = head[:size]
                self.parts = [head[size:], *rest] if len(head) > size else rest
            if piece:
                return piece
            self.parts = rest
        return b""


@pytest.mark.slow
async def test_file_beyond_four_gibibytes_is_whole_and_stored_small(node_client, library):
    size = (4 << 30) + (64 << 20) + 5
    manifest = library.import_tar("workspace/large", LargeTar(size, b"the end"))
    assert manifest.total_bytes < 2 << 20
    async with await node_client.sandboxes.create(layers=["workspace/large"]) as sandbox:
        command = f"stat -c %s /large; tail -c 9 /large | od -c; dd if=/large bs=1 skip={size - 7}"
        said = await sandbox.run(command, timeout=60)
        assert said.stdout.startswith(f"{size}\n".encode())
        assert said.stdout.endswith(b"the end")
        assert b"\\0  \\0   t   h   e" in said.stdout


def pages(pid: int, start: int, count: int) -> list[int]:
    """The frames behind a process's pages, 0 where there is none."""
    with open(f"/proc/{pid}/pagemap", "rb") as file:
        file.seek(start // 4096 * 8)
        entries = struct.unpack(f"<{count}Q", file.read(8 * count))
    return [entry & ((1 << 55) - 1) if entry >> 63 else 0 for entry in entries]


MAPPED = """
import mmap, time
file = open('/shared/large', 'rb')
view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(view[at] for at in range(0, len(view), 4096))
print('mapped', flush=True)
time.sleep(600)
"""


def mappers(node) -> list[int]:
    """Processes of the node's sandboxes that have the file mapped."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and "/shared/large" in Path(f"/proc/{name}/maps").read_text():
                found.append(int(name))
    return found


async def test_two_sandboxes_share_the_pages_of_a_layer(
    node_client, live_node, library, layer_store
):
    manifest = layer(library, "toolkit/shared", {"shared/large": os.urandom(4 << 20)})
    blob = Path(DirectoryStore(layer_store).path(str(manifest.data_digest)))
    forget(blob)
    assert resident(blob) == 0
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            sandbox = await stack.enter_async_context(
                await node_client.sandboxes.create(layers=["toolkit/shared"])
            )
            command = await sandbox.start(["python3", "-c", MAPPED])
            async for event in command.output():
                if event.stdout:
                    break
        first, second = mappers(live_node)
        frames = []
        for pid in (first, second):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            line = next(line for line in lines if line.endswith("/shared/large"))
            frames.append(pages(pid, int(line.split("-")[0], 16), 1024))
        assert 0 not in frames[0]
        assert frames[0] == frames[1]
        # One mount of each layer in the launcher, however many sandboxes.
        mounts = Path(f"/proc/{live_node.launcher()}/mountinfo").read_text().splitlines()
        layers = [line.split()[4] for line in mounts if line.split()[4].startswith("/layers/")]
        assert len(layers) == len(set(layers))
        # What was read lies in the page cache once: as the layer's, not as the blob's too.
        assert resident(blob) < 64


def forget(path: Path) -> None:
    """Drops a file's pages from the page cache: its making left them there."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident(path: Path) -> int:
    """How many pages of a file are in the page cache as its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    with path.open("rb") as file:
        size = ctypes.c_size_t(os.fstat(file.fileno()).st_size)
        at = ctypes.c_void_p(
            libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
        )
        vector = (ctypes.c_ubyte * (-(-size.value // 4096)))()
        failed = libc.mincore(at, size, vector)
        libc.munmap(at, size)
    assert not failed, os.strerror(ctypes.get_errno())
    return sum(one & 1 for one in vector)


async def test_damage_is_the_platforms_fault_and_mended_bytes_serve_again(
    node_client, library, layer_store
):
    manifest = layer(library, "toolkit/hurt", {"hurt": BIG})
    store = DirectoryStore(layer_store)
    for path in (store.path(manifest.digest), store.path(str(manifest.data_digest))):
        good = Path(path).read_bytes()
        os.chmod(path, 0o644)
        for bad in (good[:-4096], b"\0" * len(good)):
            if bad[:1] == b"\0" and path.endswith(str(manifest.data_digest)[7:]):
                continue  # what scrub and verified mounts find, not a trusted mount
            Path(path).write_bytes(bad)
            with pytest.raises(LayerDamaged) as raised:
                await node_client.sandboxes.create(layers=["toolkit/hurt"])
            assert raised.value.fault is Fault.PLATFORM
        Path(path).write_bytes(good)
    async with await node_client.sandboxes.create(layers=["toolkit/hurt"]) as sandbox:
        assert await sandbox.files.read("/hurt") == BIG


async def test_flipped_bit_in_a_trusted_store_is_found_by_verify_and_mended(
    node_client, library, layer_store
):
    manifest = layer(library, "toolkit/flipped", {"one": BIG, "two": BIG[::-1]})
    path = DirectoryStore(layer_store).path(str(manifest.data_digest))
    assert not (await node_client.images.verify("toolkit/flipped")).damage
    os.chmod(path, 0o644)
    os.truncate(path, manifest.data_bytes - 1)
    os.truncate(path, manifest.data_bytes)  # the last block's bytes but not its length
    with Path(path).open("r+b") as file:  # noqa: ASYNC230
        file.seek(5000)
        file.write(b"flipped")
    check = await node_client.images.verify("toolkit/flipped")
    [damage] = check.damage
    assert (damage.digest, damage.chunks[0]) == (manifest.data_digest, 0)
    assert damage.files[0] == "/one"
    assert (await node_client.images.verify("toolkit/flipped", remove_damaged=True)).removed
    with pytest.raises(LayerDamaged, match="gone"):
        await node_client.sandboxes.create(layers=["toolkit/flipped"])
    assert layer(
        library, "toolkit/flipped", {"one": BIG, "two": BIG[::-1]}
    ) == msgspec.structs.replace(manifest, created=library.inspect("toolkit/flipped").created)
    async with await node_client.sandboxes.create(layers=["toolkit/flipped"]) as sandbox:
        assert await sandbox.files.read("/one") == BIG
