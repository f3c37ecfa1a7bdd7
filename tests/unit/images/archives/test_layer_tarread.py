from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import subprocess
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from images_archives import make_tar, member

from skerry.errors import ImageBroken
from skerry.images.archives import tarread
from skerry.images.archives.tarread import Member, TarReader


def read(data: bytes) -> list[tuple[Member, bytes]]:
    reader = TarReader(io.BytesIO(data))
    return [(one, b"".join(reader.data())) for one in reader.members()]


SIMPLE = make_tar(member("a", b"hello", mode=0o644, mtime=5), member("d/", type=tarfile.DIRTYPE))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archive_of_each_format_is_read_as_written(form: int) -> None:
    name = "/".join(["part" * 6] * 4)
    wide = {} if form == tarfile.USTAR_FORMAT else {"uid": 3_000_000}
    [(got, data)] = read(
        make_tar(member(name, b"x" * 700, mode=0o4755, mtime=77, **wide), form=form)
    )
    assert (got.name, got.kind, got.mode, got.mtime_ns, data) == (
        name.encode(),
        b"0",
        0o4755,
        77 * 10**9,
        b"x" * 700,
    )
    assert got.uid == wide.get("uid", 0)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_non_ascii_names_are_kept_byte_for_byte(form: int) -> None:
    name, link = "n\udcff" + "é" * 120, "t\udcfe" * 120
    [(got, _)] = read(make_tar(member(name, type=tarfile.SYMTYPE, linkname=link), form=form))
    assert got.name == name.encode("utf-8", "surrogateescape")
    assert got.link == link.encode("utf-8", "surrogateescape")


def test_nanoseconds_of_gnu_tar_are_kept(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    subprocess.run(["touch", "-d", "@1700000000.123456789", tmp_path / "f"], check=True)
    done = subprocess.run(
        ["tar", "--format=posix", "-C", tmp_path, "-c", "f"], check=True, capture_output=True
    )
    [(got, _)] = read(done.stdout)
    assert got.mtime_ns == 1_700_000_000_123_456_789


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_compressed_archive_is_unpacked_on_the_way(pack) -> None:
    assert [one.name for one, _ in read(pack(SIMPLE))] == [b"a", b"d/"]
    assert [one.name for one, _ in read(pack(SIMPLE[:700]) + pack(SIMPLE[700:]))] == [b"a", b"d/"]


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_cut_compressed_archive_is_refused(pack) -> None:
    packed = pack(SIMPLE)
    for size in range(6, len(packed) - 13, 7):
        with pytest.raises(ImageBroken):
            read(packed[:size])


def test_zstd_that_wants_too_much_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=30, compression_level=1)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(ImageBroken, match="compression is damaged"):
        read(packer.compress(SIMPLE) + packer.flush())


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_compressed_archive_with_a_flipped_bit_is_refused_or_read(pack) -> None:
    packed = bytearray(pack(SIMPLE))
    refused = 0
    for at in range(len(packed)):
        packed[at] ^= 1
        try:
            read(bytes(packed))
        except ImageBroken:
            refused += 1
        packed[at] ^= 1
    assert refused > len(packed) // 3


def test_archive_known_to_be_whole_may_lack_its_end_mark_and_no_more() -> None:
    end = 512 * 3

    def names(data: bytes) -> list[bytes]:
        return [one.name for one in TarReader(io.BytesIO(data), whole=True).members()]

    assert names(SIMPLE[:end]) == [b"a", b"d/"]
    assert names(b"") == []
    for size in (end - 1, end - 513, 100):
        with pytest.raises(ImageBroken, match="too early"):
            names(SIMPLE[:size])


def test_archive_cut_anywhere_is_refused() -> None:
    end = len(SIMPLE.rstrip(b"\0"))
    whole = 512 * 4  # two headers, one block of content, one block of the end mark
    assert end < whole
    for size in [*range(0, whole, 51), 1024, 1536, whole - 1]:
        with pytest.raises(ImageBroken):
            read(SIMPLE[:size])
    assert len(read(SIMPLE[:whole])) == 2


def test_pax_header_of_a_claimed_terabyte_is_refused_without_reading_it() -> None:
    header = bytearray(make_tar(member("x", b"", type=tarfile.XHDTYPE), form=tarfile.USTAR_FORMAT))
    header[124:136] = b"\x80" + (1 << 40).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    with pytest.raises(ImageBroken, match="header of") as error:
        read(bytes(header))
    assert error.value.fields == {"limit": "header"}


@pytest.mark.parametrize("size", [1 << 62, -1])
def test_impossible_size_is_refused(size: int) -> None:
    header = bytearray(SIMPLE)
    first = 0x80 if size > 0 else 0xFF
    header[124:136] = bytes([first]) + (size % (1 << 88)).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    with pytest.raises(ImageBroken, match="size"):
        read(bytes(header))


def test_huge_claimed_content_ends_as_cut_off() -> None:
    header = bytearray(SIMPLE)
    header[124:136] = b"\x80" + (1 << 60).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    with pytest.raises(ImageBroken, match="cut off"):
        read(bytes(header))


@pytest.mark.parametrize(
    "body",
    [b"5 a=b\n", b"99 path=x\n", b"x path=y\n", b"0 \n", b"12 path=abcd", b"9 nosign\n", b"3 \n\n"],
)
def test_damaged_pax_record_is_refused(body: bytes) -> None:
    pax = make_tar(member("x", body, type=b"x"), form=tarfile.USTAR_FORMAT)[:1024]
    with pytest.raises(ImageBroken):
        read(pax + SIMPLE)


def test_pax_sizes_and_times_that_are_no_numbers_are_refused() -> None:
    for body in (b"11 size=-1\n", b"12 mtime=xx\n", b"11 uid=1_0\n"):
        assert body.startswith(b"%d " % len(body))
        pax = make_tar(member("x", body, type=b"x"), form=tarfile.USTAR_FORMAT)[:1024]
        with pytest.raises(ImageBroken):
            read(pax + SIMPLE)


def test_sparse_archive_of_gnu_tar_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as file:
        file.truncate(1 << 20)
        file.seek(500_000)
        file.write(b"x")
    for form in ("gnu", "posix"):
        done = subprocess.run(
            ["tar", "-S", f"--format={form}", "-C", tmp_path, "-c", "f"],
            check=True,
            capture_output=True,
        )
        try:
            kinds = [one.kind for one, _ in read(done.stdout)]
        except ImageBroken as error:
            assert "--sparse" in error.message  # noqa: PT017 - GNU's old form is the importer's
        else:
            assert kinds == [b"S"]


def test_what_is_no_archive_at_all_is_told_so() -> None:
    with pytest.raises(ImageBroken, match="this is no tar archive") as caught:
        read(b"# A text, as long as a header is.\n" * 40)
    assert "give a tar" in caught.value.fields["hint"]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_damage_gives_members_or_image_broken(data: st.DataObject) -> None:
    raw = bytearray(
        make_tar(
            member("é" * 80, b"hello" * 200, pax_headers={"SCHILY.xattr.user.a": "b"}),
            member("l", type=tarfile.SYMTYPE, linkname="y" * 150),
        )[:5120]
    )
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    # Repaired checksums let damage get further.
    for at in range(0, len(raw), 512):
        if any(raw[at : at + 512]) and data.draw(st.booleans()):
            raw[at + 148 : at + 156] = b" " * 8
            raw[at + 148 : at + 156] = b"%06o\0 " % sum(raw[at : at + 512])
    with contextlib.suppress(ImageBroken):
        read(bytes(raw))


def test_headers_without_a_member_are_refused_before_they_cost_hours() -> None:
    header = make_tar(member("a", pax_headers={"comment": "x"}))[:1024]
    assert header[156:157] == b"x"
    plain = make_tar(member("b"))
    assert [one.name for one, _ in read(header * 8 + plain)] == [b"b"]
    with pytest.raises(ImageBroken, match="headers of no member") as error:
        read(zstandard.compress(header * 100_000 + plain))
    assert error.value.fields == {"limit": "header"}


def test_headers_of_all_members_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarread, "_HEADERS_BYTES_MAX", 10_000)
    many = [member(str(at), pax_headers={"comment": "x" * 1000}) for at in range(9)]
    assert len(read(make_tar(*many))) == 9
    with pytest.raises(ImageBroken, match="too long together"):
        read(make_tar(*many, *many))


def test_what_follows_the_end_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tarread, "_AFTER_BYTES_MAX", 1 << 20)
    whole = make_tar(member("a"))
    assert len(read(zstandard.compress(whole + bytes(1 << 19)))) == 1
    with pytest.raises(ImageBroken, match="on and on"):
        read(zstandard.compress(whole + bytes(2 << 20)))
