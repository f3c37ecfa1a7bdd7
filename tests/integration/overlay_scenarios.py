"""What test_images_overlay.py runs as a program, in a mount namespace of its own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import stat
import struct
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from overlay_bench import BASE, Bench

# --- what the kernel shows -------------------------------------------------


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


# --- changes ---------------------------------------------------------------


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


# --- the tests -------------------------------------------------------------


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
