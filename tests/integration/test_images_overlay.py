"""Diff and commit against the kernel's own overlayfs, with the mounts of a real sandbox.

Each test runs this file as a program in a mount namespace of its own (the host's is never touched):
layers are file-backed EROFS mounts, idmapped for the sandbox's ids; random changes are made by root
of a user namespace inside the overlay. Two independent witnesses judge: the tree that the kernel
shows before and after the changes, and the one it shows with the committed layer in their place.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skerry.errors import Unavailable
from skerry.images.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.store import DirectoryStore
from skerry.spec.layers import LayerManifest

BASE = 100_000
IDS = 65_536
OPTIONS = "redirect_dir=off,metacopy=off,index=off,xino=off"
_libc = ctypes.CDLL(None, use_errno=True)

pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """The part of the census that concerns these tests: no process, mount or file in progress.

    They make no launcher, group or socket, so what the census finds of those is another's.
    """
    yield
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # processes of others come and go
            assert str(tmp_path) not in Path(f"/proc/{name}/mountinfo").read_text()
            assert str(tmp_path).encode() not in Path(f"/proc/{name}/cmdline").read_bytes()
    for place in ("scratch", "store/tmp"):
        for found in tmp_path.rglob(place):
            assert os.listdir(found) == []


def run_alone(tmp_path: Path, *words: str, timeout_s: float = 60) -> str:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts in a namespace of its own")
    try:
        Tools().mkfs()
    except Unavailable as error:
        pytest.skip(error.message)
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "--mount-proc"),
            *("--pid", "--fork", "--kill-child=KILL"),  # a test that hangs leaves nothing either
            *(sys.executable, __file__, str(tmp_path), *words),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_are_diffed_and_committed_exactly(tmp_path: Path, seed: int) -> None:
    counts = json.loads(run_alone(tmp_path, "random", str(seed)))
    assert counts["changes"] > 0


def test_each_kind_of_change_is_met_by_the_random_ones(tmp_path: Path) -> None:
    """A control: a diff that misses deletions, say, would not pass unnoticed."""
    kinds: dict[str, int] = {}
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        counts = json.loads(run_alone(tmp_path / str(seed), "random", str(100 + seed)))
        for kind in ("added", "modified", "deleted", "opaque", "whiteouts", "capability"):
            kinds[kind] = kinds.get(kind, 0) + counts[kind]
    assert all(kinds.values()), kinds


def test_whiteouts_and_opaque_marks_of_an_imported_layer_hide(tmp_path: Path) -> None:
    run_alone(tmp_path, "whiteouts")


def test_commit_of_a_commit_composes(tmp_path: Path) -> None:
    run_alone(tmp_path, "twice")


@pytest.mark.slow
def test_real_debian_is_made_changed_and_committed(tmp_path: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed")
    counts = json.loads(run_alone(tmp_path, "debian", timeout_s=900))
    assert counts["files"] > 5000
    assert counts["added"] > 20
    assert counts["deleted"] > 1


# --- in the namespace: mounts ----------------------------------------------------------------


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str, options: str, flags: int = 0) -> None:
    args = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags))
    check(_libc.mount(*args, options.encode()), f"mount {target} ({options})")


def user_namespace() -> int:
    """A descriptor of a user namespace with the sandbox's ids."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        check(_libc.unshare(0x10000000), "unshare")
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text(f"0 {BASE} {IDS}\n")
    fd = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    return fd


def idmapped(source: str, target: str, namespace: int) -> None:
    """A clone of a mount in which the ids of a layer are those of the sandbox on the host."""
    tree = check(_libc.syscall(428, -100, source.encode(), 1), "open_tree")
    attributes = struct.pack("<4Q", 0x00100000, 0, 0, namespace)
    args = (tree, b"", 0x1000, attributes, len(attributes))
    check(_libc.syscall(442, *args), "mount_setattr")
    check(_libc.syscall(429, tree, b"", -100, target.encode(), 4), "move_mount")
    os.close(tree)


class View(NamedTuple):
    path: str
    uid_base: int
    lowers: tuple[str, ...]


class Bench:
    """Layers and overlays of one test."""

    def __init__(self, top: str) -> None:
        self.top = top
        self.namespace = user_namespace()
        self.library = ImageLibrary(DirectoryStore(f"{top}/store"), Tools(), f"{top}/scratch")
        self.count = 0

    def directory(self, name: str) -> str:
        self.count += 1
        path = f"{self.top}/{self.count}-{name}"
        os.mkdir(path)
        return path

    def layer(self, name: str, archive: bytes) -> LayerManifest:
        return self.library.import_tar(name, io.BytesIO(archive))

    def mount_layer(self, made: LayerManifest) -> tuple[str, str]:
        plain, mapped = self.directory("layer"), self.directory("mapped")
        mount(self.library.store.path(made.digest), plain, "erofs", "", flags=1)
        idmapped(plain, mapped, self.namespace)
        return plain, mapped

    def overlay(self, mounted: list[tuple[str, str]]) -> tuple[str, View]:
        """A sandbox's root over mounted layers, lowest first."""
        upper, work, merged = (self.directory(name) for name in ("upper", "work", "merged"))
        os.chmod(upper, 0o755)
        os.chown(upper, BASE, BASE)
        lowers = ":".join(mapped for _, mapped in reversed(mounted))
        options = f"lowerdir={lowers},upperdir={upper},workdir={work},{OPTIONS},volatile"
        mount("overlay", merged, "overlay", options)
        return merged, View(upper, BASE, tuple(plain for plain, _ in reversed(mounted)))

    def inside(self, merged: str, work: Callable[[], None]) -> None:
        """Runs `work` as the sandbox's root, with the overlay as its root directory."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if os.path.isdir(f"{merged}/dev"):  # for these processes alone
                    check(_libc.unshare(0x20000), "unshare")
                    mount("/dev", f"{merged}/dev", "none", "", flags=0x5000)
                os.chroot(merged)
                os.chdir("/")
                check(_libc.setns(self.namespace, 0), "setns")
                os.setgroups([])
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
                os.umask(0o022)
                work()
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- in the namespace: what the kernel shows -------------------------------------------------


def fingerprint(top: str, *, exact: bool) -> dict[str, Any]:
    """Everything about a tree that a program inside can see (with `exact` times and links too)."""
    found: dict[str, Any] = {}
    links: dict[tuple[int, int], list[str]] = {}
    todo = [""]
    while todo:
        path = todo.pop()
        info = os.lstat(top + path)
        one = [stat.S_IFMT(info.st_mode), stat.S_IMODE(info.st_mode)]
        one += [info.st_uid - BASE, info.st_gid - BASE]
        if stat.S_ISREG(info.st_mode):
            one.append(hashlib.sha256(Path(top + path).read_bytes()).hexdigest())
        elif stat.S_ISLNK(info.st_mode):
            one.append(os.readlink(top + path))
        elif stat.S_ISDIR(info.st_mode):
            todo += [f"{path}/{name}" for name in os.listdir(top + path)]
        if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode):
            names = sorted(os.listxattr(top + path))
            one.append([(name, os.getxattr(top + path, name).hex()) for name in names])
        if exact and not stat.S_ISDIR(info.st_mode):
            one.append(info.st_mtime_ns)
            if info.st_nlink > 1:
                links.setdefault((info.st_dev, info.st_ino), []).append(path)
        found[path or "/"] = one
    for names in links.values():
        for path in names if len(names) > 1 else ():
            found[path].append(sorted(names))
    return found


def expected_changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, str]:
    """What a diff must say, from the trees alone."""
    changes = {}
    for path, now in after.items():
        if path not in before:
            changes[path] = "added"
        elif before[path] != now:
            changes[path] = "modified"
    for path in before:
        above = os.path.dirname(path)
        # Below a deleted directory, or one that became a file, only that is told.
        gone_above = above not in after or after[above][0] != stat.S_IFDIR
        if path not in after and not gone_above:
            changes[path] = "deleted"
    return changes


def differences(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    found = [path for path in sorted({*one, *two}) if one.get(path) != two.get(path)]
    return [f"{path}: {one.get(path)} != {two.get(path)}" for path in found]


# --- in the namespace: changes ---------------------------------------------------------------


def random_archive(rng: random.Random, *, marks: bool) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        kinds: dict[str, bool] = {}  # whether a directory
        for _ in range(60):
            parts = [rng.choice("abcdé") for _ in range(rng.randint(1, 4))]
            parents = ["/".join(parts[:at]) for at in range(1, len(parts))]
            if any(kinds.get(one) is False for one in parents) or "/".join(parts) in kinds:
                continue
            kinds.update(dict.fromkeys(parents, True))
            info = tarfile.TarInfo("/".join(parts))
            directory = rng.random() < 0.4
            kinds[info.name] = directory
            info.type = tarfile.DIRTYPE if directory else tarfile.REGTYPE
            info.mode = rng.choice([0o644, 0o755, 0o4755, 0o1777])
            info.uid, info.gid = rng.choice([0, 1000]), rng.choice([0, 1000])
            info.mtime = rng.randint(1, 10**9)
            data = b"" if directory else rng.choice([b"", b"same", rng.randbytes(5000)])
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            if marks and rng.random() < 0.3:
                hidden = f".wh.{rng.choice('abcdé')}"
                tar.addfile(tarfile.TarInfo(os.path.join(os.path.dirname(info.name), hidden)))
            if marks and directory and rng.random() < 0.3:
                tar.addfile(tarfile.TarInfo(f"{info.name}/.wh..wh..opq"))
    return out.getvalue()


def remove(path: str) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in os.listdir(path):
            remove(f"{path}/{name}")
        os.rmdir(path)
    else:
        os.unlink(path)


def write(path: str, content: bytes, flags: int = os.O_CREAT | os.O_TRUNC) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | flags, 0o666)  # it may be a FIFO
    os.write(fd, content)
    os.close(fd)


def change_at_random(rng: random.Random) -> None:
    """One change somewhere; what the kernel refuses is no change."""
    path = "/" + "/".join(rng.choice("abcdé") for _ in range(rng.randint(1, 4)))
    other = "/" + "/".join(rng.choice("abcdéf") for _ in range(rng.randint(1, 3)))
    capability = struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0)
    content = rng.choice([b"", b"same", rng.randbytes(100)])
    what = rng.randrange(17)
    if what == 0:
        write(path, content)
    elif what == 1:
        write(path, b"", flags=0)  # copied up, nothing written
    elif what == 2:
        os.mkdir(path, rng.choice([0o755, 0o700]))
    elif what == 3:
        remove(path)
    elif what in (4, 5):
        remove(path)
        os.mkdir(path)
        if what == 5:
            write(f"{path}/{rng.choice('abcd')}", content)
    elif what == 6:
        remove(path)
        write(path, content)
    elif what == 7:
        os.rename(path, other)
    elif what == 8:
        os.chmod(path, rng.choice([0o600, 0o4755, 0o2755, 0o1777]))
    elif what == 9:
        os.chown(path, rng.choice([0, 33, 65_534]), 1000, follow_symlinks=False)
    elif what == 10:
        os.symlink(rng.choice(["a", "/etc/x", "é" * 90]), path)
    elif what == 11:
        os.link(path, other, follow_symlinks=False)
    elif what == 12:
        os.setxattr(path, "user.k", content)
    elif what == 13:
        os.mkfifo(path)
    elif what == 14:
        os.utime(path, ns=(5, rng.randint(1, 10**18)))
    elif what == 15:
        write(path, content)
        os.setxattr(path, "security.capability", capability)
    else:
        os.truncate(path, rng.choice([0, 4, 10_000]))


def make_changes(rng: random.Random, count: int) -> None:
    for _ in range(count):
        try:
            change_at_random(rng)
        except OSError:
            continue


# --- in the namespace: the tests -------------------------------------------------------------


def verify(
    bench: Bench, mounted: list[tuple[str, str]], name: str, work: Callable[[], None]
) -> dict[str, int]:
    """Changes a sandbox, and judges diff, archive and commit; the commit is put on `mounted`."""
    merged, view = bench.overlay(mounted)
    before = fingerprint(merged, exact=False)
    bench.inside(merged, work)
    after, exact = fingerprint(merged, exact=False), fingerprint(merged, exact=True)

    changes = bench.library.diff(view)
    wanted = expected_changes(before, after)
    got = {change.path: change.kind.value for change in changes}
    assert not differences(got, wanted), "\n".join(differences(got, wanted))
    for change in changes:
        if change.kind.value != "deleted":
            kind, mode, uid, gid, *rest = after[change.path]
            assert (change.mode, change.uid, change.gid) == (mode, uid, gid), change
            if stat.S_ISREG(kind):
                assert change.digest == f"sha256:{rest[0]}", change
            if stat.S_ISLNK(kind):
                assert change.target == rest[0], change

    with tarfile.open(fileobj=io.BytesIO(b"".join(bench.library.diff_tar(view)))) as tar:
        told = {os.path.normpath(f"/{one.name}") for one in tar.getmembers()}
    assert told == {path for path, kind in got.items() if kind != "deleted"}

    mounted.append(bench.mount_layer(bench.library.commit(view, name)))
    again, _ = bench.overlay(mounted)
    assert not differences(exact, fingerprint(again, exact=True)), "\n".join(
        differences(exact, fingerprint(again, exact=True))
    )
    counts = {kind: list(got.values()).count(kind) for kind in ("added", "modified", "deleted")}
    marks = [os.path.join(at, one) for at, ds, fs in os.walk(mounted[-1][0]) for one in ds + fs]
    counts["whiteouts"] = sum(stat.S_ISCHR(os.lstat(one).st_mode) for one in marks)
    counts["opaque"] = sum(
        "trusted.overlay.opaque" in os.listxattr(one, follow_symlinks=False) for one in marks
    )
    counts["capability"] = sum("security.capability" in str(one) for one in after.values())
    return counts | {"changes": len(changes)}


def scenario_random(bench: Bench, seed: str) -> dict[str, int]:
    rng = random.Random(int(seed))
    names = ["base/b", "workspace/w", "toolkit/t"]
    made = [bench.layer(name, random_archive(rng, marks=at > 0)) for at, name in enumerate(names)]
    return verify(
        bench,
        [bench.mount_layer(one) for one in made],
        "workspace/new",
        lambda: make_changes(rng, 250),
    )


def scenario_twice(bench: Bench) -> dict[str, int]:
    rng = random.Random(7)
    mounted = [bench.mount_layer(bench.layer("base/b", random_archive(rng, marks=False)))]
    counts = {}
    for at in range(4):
        work = partial(make_changes, random.Random(at), 120)
        counts = verify(bench, mounted, f"workspace/w{at}", work)
    return counts


def scenario_whiteouts(bench: Bench) -> dict[str, int]:
    def archive(*names: str) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name in names:
                tar.addfile(tarfile.TarInfo(name))
        return out.getvalue()

    lower = bench.layer("base/b", archive("gone", "kept", "d/gone", "d/kept", "o/x", "o/y"))
    marks = (".wh.gone", "d/.wh.gone", "o/.wh..wh..opq")
    idle = ("o/.wh.x", "alone/.wh.never")  # hide nothing, in directories that are not merged
    upper = bench.layer("workspace/w", archive(*marks, "o/z", *idle))
    merged, _ = bench.overlay([bench.mount_layer(lower), bench.mount_layer(upper)])
    shown = sorted(path for path in fingerprint(merged, exact=False) if path != "/")
    assert shown == ["/alone", "/d", "/d/kept", "/kept", "/o", "/o/z"], shown
    return {}


_WORK = """
useradd --create-home --shell /bin/bash agent
mkdir /w && cd /w && git init -q . && echo one >f && git add f
git -c user.email=a@b -c user.name=c commit -qm one
python3 -m venv --without-pip /opt/v && /opt/v/bin/python -c 'import json'
rm -rf /usr/share/perl5 && mkdir /usr/share/perl5 && echo new >/usr/share/perl5/x
mv /etc/hostname /etc/name && echo line >>/etc/passwd && chmod 4755 /usr/bin/env
ln /etc/passwd /etc/passwd-link && chown -R agent /w && touch /etc/debian_version
"""


def scenario_debian(bench: Bench) -> dict[str, int]:
    def work() -> None:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
        argv = ["/bin/sh", "-ec", _WORK]
        status = os.waitpid(os.posix_spawn(argv[0], argv, environment), 0)[1]
        assert os.waitstatus_to_exitcode(status) == 0

    lines: list[str] = []
    base = bench.library.debian("debian:12", "bookworm", (), lines.append)
    assert bench.library.debian("debian:12", "12") == base
    assert lines
    mounted = [bench.mount_layer(base)]
    for path in ("etc/apt/sources.list", "etc/machine-id", "usr/share/man/man1", "dev/null"):
        there = f"{mounted[0][0]}/{path}"
        assert not os.path.lexists(there) or os.path.getsize(there) == 0, path
    return verify(bench, mounted, "workspace/w", work) | {"files": base.files}


def main() -> None:
    top, scenario, *words = sys.argv[1:]
    scenarios: dict[str, Callable[..., dict[str, int]]] = {
        "random": scenario_random,
        "twice": scenario_twice,
        "whiteouts": scenario_whiteouts,
        "debian": scenario_debian,
    }
    print(json.dumps(scenarios[scenario](Bench(top), *words)))


if __name__ == "__main__":
    main()
