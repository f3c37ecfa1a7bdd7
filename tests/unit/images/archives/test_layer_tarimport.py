from __future__ import annotations

import io
import os
import struct
import tarfile

import pytest
from images_archives import Member, make_tar, member

from skerry.errors import ImageBroken
from skerry.images.archives.tarimport import ImportLimits, read_tar
from skerry.images.scratch import Spool
from skerry.images.tree.entry import OPAQUE, Node, Tree
from skerry.images.tree.notes import Notes
from skerry.images.tree.xattrs import clean_outside_xattrs
from skerry.spec.files import FileType

DIR, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def take(spool: Spool, *members: Member, limits: ImportLimits | None = None) -> tuple[Tree, Notes]:
    notes = Notes()
    archive = io.BytesIO(make_tar(*members))
    return read_tar(archive, spool, notes, limits or ImportLimits()), notes


def at(tree: Tree, path: str) -> Node:
    node = tree.find(os.fsencode(path))
    assert node is not None, path
    return node


def content(spool: Spool, node: Node) -> bytes:
    assert node.content is not None
    return b"".join(spool.read(node.content))


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../x", "a/../../x", "a/..", "..", "n" * 256, "d/" + "n" * 300, "p/" * 9000],
)
def test_unsafe_or_impossible_name_is_refused(spool: Spool, name: str) -> None:
    with pytest.raises(ImageBroken):
        take(spool, member(name, b"x"))


def test_dots_and_empty_parts_of_a_name_are_dropped(spool: Spool) -> None:
    tree, _ = take(spool, member("./a//./b", b"x"))
    assert content(spool, at(tree, "a/b")) == b"x"
    assert at(tree, "a").mode == 0o755


def test_path_through_an_earlier_symbolic_link_is_refused(spool: Spool) -> None:
    with pytest.raises(ImageBroken, match="no directory"):
        take(spool, member("d", type=LINK, linkname="/etc"), member("d/passwd", b"x"))


def test_path_through_an_earlier_file_is_refused(spool: Spool) -> None:
    with pytest.raises(ImageBroken, match="no directory"):
        take(spool, member("d", b"x"), member("d/e", b"x"))


def test_links_target_is_kept_wherever_it_points(spool: Spool) -> None:
    tree, _ = take(spool, member("l", type=LINK, linkname="../../etc/shadow"))
    assert at(tree, "l").target == b"../../etc/shadow"


@pytest.mark.parametrize("target", ["/etc/passwd", "../etc/passwd", "missing", "d", "later"])
def test_hard_link_outside_or_to_no_earlier_file_is_refused(spool: Spool, target: str) -> None:
    with pytest.raises(ImageBroken, match="hard link"):
        take(
            spool,
            member("d", type=DIR),
            member("h", type=HARD, linkname=target),
            member("later", b"x"),
        )


def test_hard_link_shares_its_file(spool: Spool) -> None:
    tree, _ = take(spool, member("a", b"one"), member("b", type=HARD, linkname="./a"))
    assert at(tree, "a") is at(tree, "b")


def test_hard_link_through_a_symbolic_link_is_refused(spool: Spool) -> None:
    with pytest.raises(ImageBroken, match="hard link"):
        take(
            spool,
            member("etc", type=LINK, linkname="/etc"),
            member("h", type=HARD, linkname="etc/passwd"),
        )


def test_device_nodes_are_dropped_with_a_note(spool: Spool) -> None:
    device = {"devmajor": 1, "devminor": 3}
    tree, notes = take(
        spool,
        member("dev/null", type=tarfile.CHRTYPE, **device),
        member("dev/sda", type=tarfile.BLKTYPE, **device),
        member("hidden", type=tarfile.CHRTYPE, devmajor=0, devminor=0),
    )
    assert tree.find(b"dev/null") is tree.find(b"dev/sda") is tree.find(b"hidden") is None
    assert notes.lines() == ["device nodes dropped: 3 (/dev/null, /dev/sda, /hidden)"]


def test_the_last_of_duplicate_members_wins_and_directories_merge(spool: Spool) -> None:
    tree, _ = take(
        spool,
        member("f", b"old", mode=0o600),
        member("d/x", b"kept"),
        member("f", b"new", mode=0o644),
        member("d", type=DIR, mode=0o711),
        member("e/x", b"gone"),
        member("e", b"now a file"),
    )
    assert content(spool, at(tree, "f")) == b"new"
    assert at(tree, "d").mode == 0o711
    assert content(spool, at(tree, "d/x")) == b"kept"
    assert at(tree, "e").type is FileType.FILE
    assert tree.find(b"e/x") is None


def test_replacing_a_file_leaves_its_other_names(spool: Spool) -> None:
    tree, _ = take(
        spool, member("a", b"one"), member("b", type=HARD, linkname="a"), member("a", b"two")
    )
    assert (content(spool, at(tree, "a")), content(spool, at(tree, "b"))) == (b"two", b"one")


def test_ids_beyond_the_sandboxs_become_root_without_setuid(spool: Spool) -> None:
    tree, notes = take(
        spool,
        member("a", uid=65_536, gid=5, mode=0o6755),
        member("b", uid=65_535, gid=4_000_000_000, mode=0o4755),
        member("c", uid=65_535, gid=65_535, mode=0o6755),
    )
    got = [(at(tree, name).uid, at(tree, name).gid, at(tree, name).mode) for name in "abc"]
    assert got == [(0, 5, 0o755), (65_535, 0, 0o755), (65_535, 65_535, 0o6755)]
    assert ": 2 (/a, /b)" in notes.lines()[0]


def test_oci_whiteouts_become_overlay_marks(spool: Spool) -> None:
    tree, notes = take(
        spool,
        member("d/.wh.gone", b""),
        member("o", type=DIR),
        member("o/.wh..wh..opq", b""),
        member("o", type=DIR, mode=0o700),  # metadata again: the mark stays
        member(".wh..wh.plnk", b""),
        member(".wh.", b""),
    )
    gone = at(tree, "d/gone")
    assert (gone.type, gone.mode) == (FileType.CHARACTER, 0)
    assert (at(tree, "o").xattrs, at(tree, "o").mode) == ({OPAQUE: b"y"}, 0o700)
    assert len(notes.lines()) == 1
    assert sorted(tree.root.children or ()) == [b"d", b"o"]


@pytest.mark.parametrize("whiteout_first", [True, False])
def test_whiteout_beside_a_new_directory_makes_it_opaque(
    spool: Spool, whiteout_first: bool
) -> None:
    two = [member(".wh.d", b""), member("d", type=DIR), member("d/f", b"x")]
    tree, _ = take(spool, *(two if whiteout_first else [*two[1:], two[0]]))
    assert at(tree, "d").xattrs == {OPAQUE: b"y"}
    assert content(spool, at(tree, "d/f")) == b"x"


def test_whiteout_then_file_below_it_without_its_directory_is_opaque(spool: Spool) -> None:
    tree, _ = take(spool, member(".wh.d", b""), member("d/f", b"x"))
    assert at(tree, "d").xattrs == {OPAQUE: b"y"}


def test_whiteout_beside_a_file_of_the_same_layer_gives_the_file(spool: Spool) -> None:
    tree, _ = take(
        spool, member("a", b"x"), member(".wh.a", b""), member(".wh.b", b""), member("b")
    )
    assert at(tree, "a").type is at(tree, "b").type is FileType.FILE


def test_overlay_and_trusted_attributes_from_outside_are_stripped(spool: Spool) -> None:
    capability = struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0)
    headers = {
        "SCHILY.xattr.user.overlay.opaque": "y",
        "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.trusted.overlay.redirect": "/etc",
        "SCHILY.xattr.security.selinux": "x",
        "SCHILY.xattr.user.note": "kept",
    }
    binary = {"SCHILY.xattr.security.capability": capability.decode("latin-1")}
    tree, notes = take(
        spool, member("d", type=DIR, pax_headers=headers), member("f", pax_headers=headers | binary)
    )
    assert at(tree, "d").xattrs == {b"user.note": b"kept"}
    assert at(tree, "f").xattrs == {b"user.note": b"kept", b"security.capability": capability}
    assert "extended attributes dropped: 8" in notes.lines()[0]


def test_too_many_bytes_of_attributes_are_refused(spool: Spool) -> None:
    headers = {f"SCHILY.xattr.user.{at}": "x" * 4000 for at in range(5)}
    with pytest.raises(ImageBroken, match="extended attributes"):
        take(spool, member("f", pax_headers=headers))


def test_roots_metadata_does_not_vary_the_layer(spool: Spool) -> None:
    one, _ = take(spool, member("./", type=DIR, mode=0o700, uid=5, mtime=1), member("a", b"x"))
    assert (one.root.mode, one.root.uid) == (0o755, 0)


def test_entries_beyond_the_limit_are_refused(spool: Spool) -> None:
    limits = ImportLimits(entries_max=10)
    take(spool, *(member(str(at)) for at in range(9)), limits=limits)
    with pytest.raises(ImageBroken) as error:
        take(spool, *(member("same") for _ in range(11)), limits=limits)
    assert error.value.fields == {"limit": "entries"}


def test_directories_that_a_name_implies_count_as_entries(spool: Spool) -> None:
    with pytest.raises(ImageBroken) as error:
        take(spool, member("a/" * 50 + "f"), member("x"), limits=ImportLimits(entries_max=10))
    assert error.value.fields == {"limit": "entries"}


def test_bytes_beyond_the_limit_are_refused_before_they_are_read(spool: Spool) -> None:
    with pytest.raises(ImageBroken) as error:
        take(spool, member("a", b"x" * 101), limits=ImportLimits(bytes_max=100))
    assert error.value.fields == {"limit": "bytes"}
    assert spool.add([b""]).offset == 0


def test_bytes_of_all_paths_have_a_limit_too(spool: Spool) -> None:
    names = [member("d/" * 1000 + str(at)) for at in range(20)]
    with pytest.raises(ImageBroken) as error:
        take(spool, *names, limits=ImportLimits(words_bytes_max=30_000))
    assert error.value.fields == {"limit": "words"}


@pytest.mark.parametrize("header", ["SCHILY.xattr.user.a", "linkpath"])
def test_bytes_of_all_attributes_and_links_have_a_limit_too(spool: Spool, header: str) -> None:
    kind = tarfile.SYMTYPE if header == "linkpath" else tarfile.REGTYPE
    many = [member(str(at), type=kind, pax_headers={header: "v" * 2000}) for at in range(20)]
    assert take(spool, *many)[0].made == 21
    with pytest.raises(ImageBroken) as error:
        take(spool, *many, limits=ImportLimits(words_bytes_max=30_000))
    assert error.value.fields == {"limit": "words"}


def test_unknown_member_type_is_refused(spool: Spool) -> None:
    with pytest.raises(ImageBroken, match="unknown type"):
        take(spool, member("a", type=b"Z"))


def test_five_thousand_levels_and_ten_thousand_files_are_taken(spool: Spool) -> None:
    deep = "d/" * 5000 + "f"
    tree, _ = take(spool, member(deep, b"x"), *(member(f"m/{at}") for at in range(10_000)))
    assert content(spool, at(tree, deep)) == b"x"
    assert tree.count() == 1 + 5000 + 1 + 1 + 10_000


def test_identity_depends_on_content_but_not_on_order(spool: Spool) -> None:
    a, b = member("a", b"1", mtime=3), member("b", b"2", mtime=3)
    same = [take(spool, a, b)[0].identity(), take(spool, b, a)[0].identity()]
    assert same[0] == same[1]
    for other in (
        member("b", b"3", mtime=3),
        member("b", b"2", mtime=4),
        member("c", b"2", mtime=3),
    ):
        assert take(spool, a, other)[0].identity() != same[0]


def test_access_lists_are_kept_without_ids_that_no_sandbox_has() -> None:
    def entry(tag: int, permissions: int, who: int = 0xFFFFFFFF) -> bytes:
        return struct.pack("<HHI", tag, permissions, who)

    head, tail = struct.pack("<I", 2) + entry(1, 6), entry(4, 4) + entry(16, 6) + entry(32, 4)
    good, far = head + entry(2, 6, 33) + tail, head + entry(2, 6, 70_000) + tail
    for value, kept in ((good, good), (far, head + tail), (good[:-1], None), (b"", None)):
        notes = Notes()
        made = clean_outside_xattrs({b"system.posix_acl_access": value}, notes, b"f")
        assert made.get(b"system.posix_acl_access") == kept
        assert bool(notes.lines()) is (kept is None)
