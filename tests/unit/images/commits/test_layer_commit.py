"""What of an upper goes into a layer; that it composes to the same tree is an integration test."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

import msgspec
import pytest
from image_uppers import BASE, Layers, lower

from skerry.errors import ImageBroken, InvalidRequest, Unavailable
from skerry.images.commits.commit import Wish, read_upper
from skerry.images.commits.inplace import InPlace
from skerry.images.commits.packing import _LINE_BYTES_MAX, Apart, Packed, _Said
from skerry.images.commits.residue import Residue, homes_in
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.images.library import ImageLibrary
from skerry.images.tree.entry import OPAQUE, Tree
from skerry.images.tree.notes import Notes
from skerry.images.tree.upper import UpperLimits
from skerry.spec.files import FileType
from skerry.spec.residue import DEFAULT

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("as_root")]


def take(layers: Layers, *exclude: str) -> Tree:
    with contextlib.closing(InPlace(layers.view.path)) as contents:
        wish = Wish(Notes(), Residue(DEFAULT), exclude=exclude)
        return read_upper(layers.view, contents, wish)


def paths(tree: Tree) -> list[str]:
    return [os.fsdecode(entry.path) for entry in tree.entries(None) if entry.path]


def test_whiteouts_that_hide_something_stay_and_others_go(layers: Layers) -> None:
    lower(layers.bottom, "d/gone")
    lower(layers.bottom, "o/x")
    layers.whiteout("d/gone")
    layers.whiteout("d/never")
    layers.directory("o", opaque=True)
    layers.whiteout("o/x")
    tree = take(layers)
    assert paths(tree) == ["d", "d/gone", "o"]
    assert tree.find(b"d/gone").type is FileType.CHARACTER  # type: ignore[union-attr]
    assert tree.find(b"o").xattrs == {OPAQUE: b"y"}  # type: ignore[union-attr]


def test_residue_is_left_out_but_its_directories_and_deletions_stay(layers: Layers) -> None:
    residue = ["tmp/a/b", "var/tmp/x", "root/.cache/pip/x", "root/.bash_history", "var/log/apt/x"]
    residue += ["home/u/.cache/x", "home/u/.python_history", "root/.lesshst", "var/cache/apt/a.bin"]
    kept = [
        "root/.bashrc",
        "home/u/.cached",
        "opt/tmp/x",
        "var/log/app",
        "usr/x.pyc",
        "home/.cache",
    ]
    for path in residue + kept:
        layers.write(path)
    for mount in ("dev/x", "proc/x", "run/x/y", "sys/x"):
        layers.write(mount)
    lower(layers.bottom, "var/lib/apt/lists/one")
    lower(layers.bottom, "run/lock")
    layers.whiteout("var/lib/apt/lists/one")
    layers.whiteout("run/lock")
    got = paths(take(layers))
    assert not set(residue) & set(got)
    assert set(kept) <= set(got)
    assert {"tmp", "var/tmp", "root/.cache", "dev", "run", "var/lib/apt/lists/one"} <= set(got)
    assert not {path for path in got if path.startswith(("dev/", "proc/", "run/", "sys/", "tmp/"))}


def test_excluded_prefixes_are_as_if_never_touched(layers: Layers) -> None:
    lower(layers.bottom, "answers/old")
    layers.whiteout("answers/old")
    layers.write("answers/new")
    layers.write("answers.txt")
    layers.write("w/keep/a")
    layers.write("w/drop/a")
    got = paths(take(layers, "/answers/", "/w/drop"))
    assert got == ["answers.txt", "w", "w/keep", "w/keep/a"]
    for bad in ("answers", "/", ""):
        with pytest.raises(InvalidRequest):
            take(layers, bad)


def test_ids_capabilities_and_access_lists_become_those_seen_inside(layers: Layers) -> None:
    file = layers.write("f", uid=BASE + 33, mode=0o755)
    words = (1 << 10, 0, 0, 0)
    os.setxattr(file, "security.capability", struct.pack("<6I", 0x03000001, *words, BASE))
    os.setxattr(file, "user.overlay.opaque", b"y")
    os.setxattr(file, "user.mine", b"1")
    acl = struct.pack("<I", 2)
    for entry in ((1, 7, -1), (2, 6, BASE + 5), (4, 5, -1), (16, 7, -1), (32, 5, -1)):
        acl += struct.pack("<HHi", *entry)
    os.setxattr(file, "system.posix_acl_access", acl)
    node = take(layers).find(b"f")
    assert node is not None
    assert (node.uid, node.gid) == (33, 33)
    assert node.xattrs[b"security.capability"] == struct.pack("<5I", 0x02000001, *words)
    assert struct.pack("<HHi", 2, 6, 5) in node.xattrs[b"system.posix_acl_access"]
    assert node.xattrs[b"user.mine"] == b"1"
    assert len(node.xattrs) == 3


def test_hard_links_stay_and_sockets_and_devices_go(layers: Layers) -> None:
    os.link(layers.write("a", b"one"), layers.upper / "b")
    os.mknod(layers.upper / "dev0", 0o020600, os.makedev(1, 3))
    os.mkfifo(layers.upper / "fifo")
    tree = take(layers)
    assert paths(tree) == ["a", "b", "fifo"]
    assert tree.find(b"a") is tree.find(b"b")


def test_limits_are_errors(layers: Layers) -> None:
    layers.write("f", b"x" * 100)
    for limits in (UpperLimits(bytes_max=99), UpperLimits(entries_max=0)):
        wish = Wish(Notes(), Residue(()), limits)
        with (
            contextlib.closing(InPlace(layers.view.path)) as contents,
            pytest.raises(ImageBroken),
        ):
            read_upper(layers.view, contents, wish)


def test_attributes_of_all_files_have_a_limit(layers: Layers) -> None:
    for at in range(6):
        os.setxattr(layers.write(f"file-{at}"), b"user.a", b"v" * 200)

    def read(limit: int) -> Tree:
        with contextlib.closing(InPlace(layers.view.path)) as contents:
            limits = UpperLimits(path_bytes_max=limit)
            return read_upper(layers.view, contents, Wish(Notes(), Residue(DEFAULT), limits))

    assert read(3000).made == 7
    with pytest.raises(ImageBroken) as error:
        read(1000)
    assert error.value.fields == {"limit": "attributes"}


def test_result_of_the_largest_commit_fits_into_a_line() -> None:
    digests = UpperLimits().bytes_max // CHUNK_BYTES * 32
    line = _Said(packed=Packed(path="p", digest="d", size_bytes=1, files=1, chunks=bytes(digests)))
    assert len(msgspec.json.encode(line)) < _LINE_BYTES_MAX // 2  # notes and residue go with it


def test_commit_of_nothing_is_an_empty_layer(layers: Layers, library: ImageLibrary) -> None:
    made = library.commit(layers.view, "workspace/empty", recipe={"sandbox": "s1"})
    assert (made.files, made.creator, made.recipe) == (1, "commit", {"sandbox": "s1"})


def test_commit_as_a_base_is_refused(layers: Layers, library: ImageLibrary) -> None:
    with pytest.raises(InvalidRequest, match="only what changed"):
        library.commit(layers.view, "base/x")


def test_deep_upper_is_committed(layers: Layers, library: ImageLibrary) -> None:
    fd = os.open(layers.upper, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=fd)
        deeper = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    if not library.tools.mkfs().reads_tar:
        pytest.skip("mkfs.erofs older than 1.8 cannot take paths of more than 4,096 bytes")
    assert library.commit(layers.view, "workspace/deep").files == 5001


def test_host_directory_is_imported_at_its_prefix(library: ImageLibrary, tmp_path: Path) -> None:
    source = tmp_path / "src"
    (source / "sub").mkdir(parents=True)
    (source / "sub/f").write_bytes(b"x")
    os.chown(source / "sub/f", 70_000, 5)
    (source / "sub/f").chmod(0o4755)
    os.mkfifo(source / "fifo")
    os.mknod(source / "dev", 0o020600, os.makedev(1, 3))
    os.setxattr(source / "sub", "trusted.overlay.opaque", b"y")
    made = library.import_directory("toolkit/t", str(source), "/opt/t")
    assert made.files == 1 + 2 + 3
    assert made.recipe["prefix"] == "/opt/t"
    assert "sockets and devices dropped: 1 (/dev)" in made.recipe["notes"]
    assert "became 0" in made.recipe["notes"]
    for path, prefix in (
        (str(source / "none"), "/"),
        (str(source), "opt"),
        (str(source / "fifo"), "/"),
    ):
        with pytest.raises(InvalidRequest):
            library.import_directory("toolkit/t", path, prefix)
    with pytest.raises(ImageBroken):
        library.import_directory("toolkit/t", str(source), "/a/../b")


def test_a_commit_apart_gives_the_same_layer_and_reads_the_files_where_they_are(
    layers: Layers, library: ImageLibrary
) -> None:
    layers.write("srv/a", b"a" * 100_000)
    layers.write("srv/b", b"b" * 3)
    layers.write("root/.netrc", b"machine x password y")
    here = library.commit(layers.view, "workspace/here", parents=("sha256:x",))
    there = library.commit(layers.view, "workspace/there", apart=Apart(), parents=("sha256:x",))
    assert (here.digest, here.data_digest) == (there.digest, there.data_digest)
    assert here.scrubbed == there.scrubbed
    assert here.parents == ("sha256:x",)
    (taken,) = here.scrubbed
    assert (taken.rule, taken.files, taken.bytes) == ("credentials", 1, 20)
    assert taken.paths == ("/root/.netrc",)


def test_what_a_process_apart_cannot_take_is_the_same_error(
    layers: Layers, library: ImageLibrary
) -> None:
    with pytest.raises(InvalidRequest, match="absolute"):
        library.commit(layers.view, "workspace/x", exclude=("a",), apart=Apart())
    ended = Apart()
    ended.end()
    with pytest.raises(Unavailable, match="ended"):
        library.commit(layers.view, "workspace/x", apart=ended)
    assert library.list() == ()


def test_rules_that_are_not_asked_for_take_nothing_and_unknown_ones_are_refused(
    layers: Layers, library: ImageLibrary
) -> None:
    layers.write("root/.netrc", b"x")
    layers.write("srv/app/build/out.o", b"x")
    kept = library.commit(layers.view, "workspace/kept", scrub=())
    assert (kept.files, kept.scrubbed) == (7, ())
    built = library.commit(layers.view, "workspace/built", scrub=("builds",))
    assert [(one.rule, one.files) for one in built.scrubbed] == [("builds", 2)]
    with pytest.raises(InvalidRequest, match="credentials"):
        library.commit(layers.view, "workspace/x", scrub=("credential",))


def test_homes_come_from_the_list_of_users_and_odd_ones_are_none() -> None:
    passwd = b"root:x:0:0::/root:/bin/sh\na:x:1:1::/home/a:/x\nb:x:2:2::/srv/b/:/x\nc:x:3:3::/:/x\n"
    passwd += b"d:x:4:4::relative:/x\ne:x:5:5::/a/../b:/x\nshort\nf:x:6:6::/var/f.+*:/x\n"
    assert homes_in(passwd) == (b"srv/b", b"var/f.+*")
    residue = Residue(("credentials",), homes_in(passwd))
    for path in (b"srv/b/.netrc", b"var/f.+*/.netrc", b".netrc", b"root/.netrc", b"home/x/.netrc"):
        assert residue.rule_for(path, 1, bytes) == "credentials", path
    for path in (b"srv/c/.netrc", b"var/fxx/.netrc", b"home/.netrc", b"root/a/.netrc"):
        assert residue.rule_for(path, 1, bytes) is None, path
    assert homes_in(b"".join(b"u:x:1:1::/srv/%d:/x\n" % n for n in range(9999)))[-1] == b"srv/255"
