"""The rewriting of submissions: what is kept comes out, and nothing else ever."""

from __future__ import annotations

import hashlib
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tasks_for_audits import added, folder, link

from skerry.errors import SandboxFailed
from skerry.integrity.tarfilter import TarFilter
from skerry.spec.digests import SparseDigest
from skerry.spec.files import Change, ChangeKind

LIMIT = 1 << 20


def member(name: str, content: bytes = b"", **more: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in more.items():
        setattr(info, key, value)
    return info, content


def archive(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def file(path: str, content: bytes, mode: int = 0o644) -> Change:
    return added(path, digest="sha256:" + hashlib.sha256(content).hexdigest(), mode=mode)


def sift(data: bytes, keep: list[Change], *, limit: int = LIMIT, piece: int = 700) -> bytes:
    sieve = TarFilter(keep, "/testbed", bytes_max=limit)
    out = b"".join(sieve.feed(data[at : at + piece]) for at in range(0, len(data), piece))
    out += sieve.finish()
    assert sieve.missing == ()
    return out


def names(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {one.name: one for one in tar}


def test_kept_files_come_out_and_others_do_not() -> None:
    data = archive(
        member("testbed/src/a.py", b"a" * 1000),
        member("testbed/tests/test_a.py", b"evil"),
        member("testbed/src/b.py", b""),
    )
    out = sift(data, [file("/testbed/src/a.py", b"a" * 1000), file("/testbed/src/b.py", b"")])
    assert list(names(out)) == ["src/a.py", "src/b.py"]


def test_names_relative_to_the_root_are_understood_too() -> None:
    out = sift(archive(member("./src/a.py", b"a")), [file("/testbed/src/a.py", b"a")])
    assert list(names(out)) == ["src/a.py"]


def test_owners_times_and_set_id_bits_are_lost() -> None:
    data = archive(member("testbed/a", b"x", mode=0o6755, uid=7, gid=8, mtime=12345, uname="me"))
    kept = names(sift(data, [file("/testbed/a", b"x", 0o6755)]))["a"]
    assert (kept.mode, kept.uid, kept.gid, kept.mtime) == (0o755, 0, 0, 0)


def test_unreadable_modes_become_readable() -> None:
    data = archive(member("testbed/a", b"x", mode=0o200))
    assert names(sift(data, [file("/testbed/a", b"x", 0o200)]))["a"].mode == 0o644


@pytest.mark.parametrize("name", ["../testbed/a", "testbed/../../a", "/testbed/../testbed/a"])
def test_members_that_climb_are_never_matched(name: str) -> None:
    sieve = TarFilter([file("/testbed/a", b"x")], "/testbed", bytes_max=LIMIT)
    out = sieve.feed(archive(member(name, b"x"))) + sieve.finish()
    assert names(out) == {}
    assert sieve.missing == ("/testbed/a",)


def test_a_file_that_became_a_link_is_refused() -> None:
    data = archive(member("testbed/a", type=tarfile.SYMTYPE, linkname="/etc/passwd"))
    with pytest.raises(SandboxFailed, match="became something else"):
        sift(data, [file("/testbed/a", b"x")])


def test_a_device_in_place_of_a_file_is_refused() -> None:
    data = archive(member("testbed/a", type=tarfile.CHRTYPE, devmajor=1, devminor=3))
    with pytest.raises(SandboxFailed):
        sift(data, [file("/testbed/a", b"")])


def test_content_that_changed_since_the_audit_is_refused() -> None:
    with pytest.raises(SandboxFailed, match="changed"):
        sift(archive(member("testbed/a", b"y")), [file("/testbed/a", b"x")])


def test_a_link_whose_target_changed_is_refused() -> None:
    data = archive(member("testbed/l", type=tarfile.SYMTYPE, linkname="b"))
    with pytest.raises(SandboxFailed, match="changed"):
        sift(data, [link("/testbed/l", "a")])


def test_links_and_directories_are_kept() -> None:
    data = archive(
        member("testbed/d", type=tarfile.DIRTYPE, mode=0o700),
        member("testbed/l", type=tarfile.SYMTYPE, linkname="d/x"),
    )
    keep = [folder("/testbed/d", 0o700, ChangeKind.ADDED), link("/testbed/l", "d/x")]
    kept = names(sift(data, keep))
    assert kept["d"].isdir()
    assert kept["d"].mode == 0o755
    assert kept["l"].linkname == "d/x"


def test_a_second_name_of_a_kept_file_stays_a_hard_link() -> None:
    data = archive(
        member("testbed/a", b"x"),
        member("testbed/b", type=tarfile.LNKTYPE, linkname="testbed/a"),
    )
    kept = names(sift(data, [file("/testbed/a", b"x"), file("/testbed/b", b"x")]))
    assert kept["b"].islnk()
    assert kept["b"].linkname == "a"


def test_a_hard_link_to_something_not_kept_is_refused() -> None:
    data = archive(
        member("testbed/tests/secret", b"x"),
        member("testbed/b", type=tarfile.LNKTYPE, linkname="testbed/tests/secret"),
    )
    with pytest.raises(SandboxFailed, match="second name"):
        sift(data, [file("/testbed/b", b"x")])


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_survive(form: int) -> None:
    name = "testbed/" + "/".join(["directory"] * 12) + "/file.py"
    out = sift(archive(member(name, b"x"), form=form), [file("/" + name, b"x")])
    assert list(names(out)) == [name.removeprefix("testbed/")]


def test_names_that_are_no_text_survive() -> None:
    raw = b"testbed/caf\xe9.py".decode("utf-8", "surrogateescape")
    out = sift(archive(member(raw, b"x"), form=tarfile.GNU_FORMAT), [file("/" + raw, b"x")])
    assert [name.encode("utf-8", "surrogateescape") for name in names(out)] == [b"caf\xe9.py"]


def test_more_bytes_than_allowed_are_refused() -> None:
    with pytest.raises(SandboxFailed, match="too large"):
        sift(
            archive(member("testbed/a", b"x" * 2000)), [file("/testbed/a", b"x" * 2000)], limit=1999
        )


def test_an_archive_that_breaks_off_is_refused() -> None:
    data = archive(member("testbed/a", b"x" * 5000))[:3000]
    with pytest.raises(SandboxFailed, match="broke off"):
        sift(data, [file("/testbed/a", b"x" * 5000)])


def test_a_repeated_member_counts_once() -> None:
    data = archive(member("testbed/a", b"x"), member("testbed/a", b"y"))
    out = sift(data, [file("/testbed/a", b"x")])
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        assert [one.name for one in tar] == ["a"]


@given(st.binary(max_size=3000), st.integers(1, 2000))
def test_any_bytes_are_refused_or_give_nothing(data: bytes, piece: int) -> None:
    sieve = TarFilter([file("/testbed/a", b"x")], "/testbed", bytes_max=LIMIT)
    try:
        out = b"".join(sieve.feed(data[at : at + piece]) for at in range(0, len(data), piece))
        sieve.finish()
    except SandboxFailed:
        return
    assert out == b""


@given(st.integers(0, 2047), st.integers(0, 255), st.integers(1, 900))
def test_a_damaged_archive_gives_only_kept_names(at: int, value: int, piece: int) -> None:
    data = bytearray(archive(member("testbed/a", b"x" * 600), member("testbed/secret", b"s")))
    data[at] = value
    sieve = TarFilter([added("/testbed/a", digest=None)], "/testbed", bytes_max=LIMIT)
    try:
        out = b"".join(sieve.feed(bytes(data[n : n + piece])) for n in range(0, len(data), piece))
        out += sieve.finish()
    except SandboxFailed:
        return
    assert set(names(out)) <= {"a"}


@pytest.mark.parametrize("piece", [1 << 20, 511])
def test_sparse_files_are_what_the_audit_saw_or_nothing_is_graded(piece: int) -> None:
    content = bytearray(70_000)
    content[9000:9005] = b"holds"
    seen = SparseDigest(len(content))
    seen.put(9000, b"holds")
    keep = [added("/testbed/a", digest=seen.text())]
    out = sift(archive(member("testbed/a", bytes(content))), keep, piece=piece)
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        found = tar.extractfile("a")
        assert found is not None
        assert found.read() == content
    content[60_000] = 1
    with pytest.raises(SandboxFailed, match="changed while"):
        sift(archive(member("testbed/a", bytes(content))), keep, piece=piece)
