from __future__ import annotations

import hashlib
import io
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.errors import Fault, LayerDamaged, StorageFailed
from skerry.images.format.chunks import (
    CHUNK_BYTES,
    ChunkList,
    ChunkListBuilder,
    Codec,
    build_list,
    decode_list,
    list_bytes,
    pick_chunk,
)

# Contents around the borders of chunks, cheap to make: a byte repeated, and a short random tail.
contents = st.builds(
    lambda fill, count, tail: bytes([fill]) * count + tail,
    st.integers(0, 255),
    st.sampled_from([0, 1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES]),
    st.binary(max_size=64),
)


def listed(content: bytes, codec: Codec) -> tuple[ChunkList, bytes]:
    """The list of a content, and its stored form."""
    stored = io.BytesIO()
    builder = ChunkListBuilder(stored if codec is Codec.ZSTD else None)
    builder.add(content)
    return builder.finish(), stored.getvalue() if codec is Codec.ZSTD else content


def test_content_digest_is_the_documented_hash() -> None:
    content = os.urandom(2 * CHUNK_BYTES + 5)
    digests = b"".join(
        hashlib.sha256(content[at : at + CHUNK_BYTES]).digest()
        for at in range(0, len(content), CHUNK_BYTES)
    )
    head = b"skerry chunks 1\n" + struct.pack("<IQ", 262144, len(content))
    expected = "sha256:" + hashlib.sha256(head + digests).hexdigest()
    for codec in Codec:
        assert listed(content, codec)[0].content_digest == expected


@settings(max_examples=40, deadline=None)
@given(content=contents, codec=st.sampled_from(Codec), cuts=st.lists(st.integers(1, 400_000)))
def test_any_content_comes_back_chunk_by_chunk(
    content: bytes, codec: Codec, cuts: list[int]
) -> None:
    stored = io.BytesIO()
    builder = ChunkListBuilder(stored if codec is Codec.ZSTD else None)
    rest = memoryview(content)
    for cut in cuts:
        builder.add(rest[:cut])
        rest = rest[cut:]
    builder.add(rest)
    made = builder.finish()
    file = stored if codec is Codec.ZSTD else io.BytesIO(content)
    assert made.stored_bytes == len(file.getvalue())
    again = decode_list(made.encode(), made.content_digest)
    assert again == made == listed(content, codec)[0]
    assert len(made.encode()) == list_bytes(len(content), codec)
    got = b"".join(pick_chunk(again, file, chunk) for chunk in range(again.count))
    assert got == content


@settings(max_examples=60, deadline=None)
@given(
    offset=st.integers(0, 5 * CHUNK_BYTES),
    length=st.integers(0, 3 * CHUNK_BYTES),
    size=st.integers(0, 4 * CHUNK_BYTES),
)
def test_touched_chunks_are_those_with_a_byte_of_the_range(
    offset: int, length: int, size: int
) -> None:
    made = ChunkList(size, bytes(32 * -(-size // CHUNK_BYTES)))
    touched = made.touched(offset, length)
    for chunk in range(made.count):
        span = made.span(chunk)
        first, end = max(offset, span.offset), min(offset + length, span.offset + span.length)
        assert (chunk in touched) == (first < end)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_damage_of_a_list_is_noticed(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(Codec))
    content = os.urandom(CHUNK_BYTES + 100)
    made, stored = listed(content, codec)
    whole = bytearray(made.encode())
    kind = data.draw(st.sampled_from(["flip", "cut", "extend"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if kind == "flip":
        whole[at] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del whole[at:]
    else:
        whole += data.draw(st.binary(min_size=1, max_size=40))
    try:
        again = decode_list(bytes(whole), made.content_digest)
        got = b"".join(pick_chunk(again, io.BytesIO(stored), at) for at in range(again.count))
    except LayerDamaged:
        return
    # The name does not cover how long frames are: a wrong length may lead to the right bytes.
    assert codec is Codec.ZSTD
    assert got == content


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_list_or_refused(data: bytes) -> None:
    for head in (b"", b"SKCHUNKS" + struct.pack("<II", 1, 1) + struct.pack("<II", 4096, 0)):
        try:
            made = decode_list(head + data)
        except LayerDamaged:
            continue
        assert made.encode() == head + data


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<8sIIIIQ", b"SKCHUNKS", 2, 0, CHUNK_BYTES, 0, 0),
        struct.pack("<8sIIIIQ", b"SKCHUNKS", 1, 2, CHUNK_BYTES, 0, 0),
        struct.pack("<8sIIIIQ", b"SKCHUNKS", 1, 0, CHUNK_BYTES, 1, 0),
        struct.pack("<8sIIIIQ", b"SKCHUNKS", 1, 0, 0, 0, 0),
        struct.pack("<8sIIIIQ", b"SKCHUNKS", 1, 0, 12288, 0, 0),
        struct.pack("<8sIIIIQ", b"SKCHUNKS", 1, 0, 1 << 31, 0, 0),
        struct.pack("<8sIIIIQ", b"SKCHUNKS", 1, 0, CHUNK_BYTES, 0, (1 << 40) + 1),
        struct.pack("<8sIIIIQ", b"SKCHUNKS", 1, 0, CHUNK_BYTES, 0, (1 << 64) - 1),
        struct.pack("<8sIIIIQ", b"SKCHUNKS", 1, 1, CHUNK_BYTES, 0, 1) + bytes(36),  # no frame
        struct.pack("<8sIIIIQ", b"SKCHUNKS", 1, 1, CHUNK_BYTES, 0, 1) + b"\xff" * 36,
    ],
)
def test_impossible_header_is_refused(header: bytes) -> None:
    with pytest.raises(LayerDamaged):
        decode_list(header)


def test_list_of_another_blob_is_refused() -> None:
    ours, _ = listed(b"ours", Codec.NONE)
    theirs, _ = listed(b"theirs", Codec.NONE)
    with pytest.raises(LayerDamaged, match="describes"):
        decode_list(theirs.encode(), ours.content_digest)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_damage_of_a_stored_chunk_is_noticed(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(Codec))
    made, stored = listed(b"some text, " * 3000, codec)
    bad = bytearray(stored)
    at = data.draw(st.integers(0, len(bad) - 1))
    if data.draw(st.booleans()):
        bad[at] ^= data.draw(st.integers(1, 255))
    else:
        del bad[at:]
    try:
        got = made.open_chunk(0, bytes(bad))
    except LayerDamaged:
        return
    # A frame has bits that say nothing of its content.
    assert codec is Codec.ZSTD
    assert got == b"some text, " * 3000


def test_damaged_chunk_is_the_platforms_fault_and_named() -> None:
    made, _ = listed(b"text", Codec.NONE)
    with pytest.raises(LayerDamaged) as raised:
        made.open_chunk(0, b"tExt")
    assert raised.value.fault is Fault.PLATFORM
    assert raised.value.fields == {"digest": made.content_digest, "chunk": 0}


def test_frame_that_promises_gigabytes_takes_no_memory() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    made, _ = listed(bytes(CHUNK_BYTES), Codec.ZSTD)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        for frame in (bomb, silent, b"", b"\x28\xb5\x2f\xfd", made.encode()):
            with pytest.raises(LayerDamaged):
                made.open_chunk(0, frame)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_frames_after_the_first_are_refused() -> None:
    made, stored = listed(b"once", Codec.ZSTD)
    with pytest.raises(LayerDamaged):
        made.open_chunk(0, stored + stored)


def test_both_codecs_of_a_file_have_one_name(tmp_path: Path) -> None:
    path, stored = tmp_path / "data", tmp_path / "data.zst"
    content = os.urandom(CHUNK_BYTES) + bytes(5 * CHUNK_BYTES) + b"end"
    path.write_bytes(content)
    plain, packed = build_list(str(path)), build_list(str(path), str(stored))
    assert plain.content_digest == packed.content_digest
    assert (plain.codec, packed.codec) == (Codec.NONE, Codec.ZSTD)
    assert packed.stored_bytes == stored.stat().st_size < 2 * CHUNK_BYTES
    assert plain.stored_bytes == len(content)
    with stored.open("rb") as file:
        assert b"".join(pick_chunk(packed, file, at) for at in range(packed.count)) == content
    # The stored file is the frames and nothing else: any zstd reads it.
    reader = zstandard.ZstdDecompressor().stream_reader(
        stored.read_bytes(), read_across_frames=True
    )
    assert reader.read() == content


def test_missing_and_unwritable_files_are_storage_failures(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed):
        build_list(str(tmp_path / "none"))
    (tmp_path / "data").write_bytes(b"x")
    with pytest.raises(StorageFailed):
        build_list(str(tmp_path / "data"), "/dev/null/x")
    with open("/dev/full", "wb", buffering=0) as full:
        builder = ChunkListBuilder(full)
        builder.add(b"x")
        with pytest.raises(StorageFailed):
            builder.finish()


def test_list_of_an_empty_blob_has_a_name_and_no_chunk() -> None:
    for codec in Codec:
        made, _ = listed(b"", codec)
        assert (made.count, made.size, made.stored_bytes) == (0, 0, 0)
        assert decode_list(made.encode(), made.content_digest) == made
        assert list(made.touched(0, 10)) == []
