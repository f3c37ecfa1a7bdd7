"""Maps of block disks: what is encoded comes back, and nothing else is taken for a map."""

from __future__ import annotations

import random
import struct

import pytest

from skerry.errors import InvalidRequest, LayerDamaged
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.images.format.diskmap import (
    BLOBS_MAX,
    BlobRef,
    DiskMap,
    Place,
    check_size,
    decode_map,
    make_map,
)

PARENT = f"sha256:{'ab' * 32}"


def blob(number: int, chunks: int = 100) -> BlobRef:
    return BlobRef(f"sha256:{number:064x}", chunks * CHUNK_BYTES)


def some_map(seed: int = 1) -> tuple[DiskMap, dict[int, Place]]:
    draw = random.Random(seed)
    places = {
        chunk: Place(draw.randrange(3), draw.randrange(100))
        for chunk in range(200)
        if draw.random() < 0.4
    }
    places |= {chunk: Place(1, chunk - 50) for chunk in range(60, 90)}  # a long run
    made = make_map(200 * CHUNK_BYTES, (blob(1), blob(2), blob(3)), sorted(places.items()), PARENT)
    return made, places


def test_map_comes_back_as_it_was_and_finds_every_chunk() -> None:
    made, places = some_map()
    found = decode_map(made.encode(), made.digest)
    assert found == made
    numbered = [made.blobs.index(one) for one in (blob(1), blob(2), blob(3))]
    for chunk in range(made.count):
        expected = places.get(chunk)
        place = found.find(chunk)
        if expected is None:
            assert place is None
            assert found.zero_until(chunk) == min(
                (at for at in places if at > chunk), default=made.count
            )
        else:
            assert place == Place(numbered[expected.blob], expected.chunk)
            assert found.zero_until(chunk) == chunk
    assert [chunk for chunk, _ in found.places()] == sorted(places)
    assert sum(found.live()) == len(places)


def test_blobs_without_chunks_are_left_out_and_too_many_refused() -> None:
    made = make_map(CHUNK_BYTES, (blob(1), blob(2)), [(0, Place(1, 3))], None)
    assert made.blobs == (blob(2),)
    assert made.find(0) == Place(0, 3)
    many = [(at, Place(at, 0)) for at in range(BLOBS_MAX + 1)]
    with pytest.raises(InvalidRequest):
        make_map(1000 * CHUNK_BYTES, map(blob, range(BLOBS_MAX + 1)), many, None)


@pytest.mark.parametrize(
    "size", [0, -1, CHUNK_BYTES - 1, CHUNK_BYTES + 512, (1 << 40) + CHUNK_BYTES]
)
def test_sizes_that_no_disk_has_are_refused(size: int) -> None:
    with pytest.raises(InvalidRequest):
        check_size(size)


def changed(data: bytes, at: int, form: str, value: int) -> bytes:
    out = bytearray(data)
    struct.pack_into(form, out, at, value)
    return bytes(out)


HEAD, BLOB = 64, 40


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (0, "<Q", 0),  # magic
        (8, "<I", 2),  # version
        (12, "<I", 4096),  # chunk bytes
        (16, "<Q", 1 << 41),  # size
        (16, "<Q", CHUNK_BYTES),  # smaller than its runs
        (16, "<Q", 12345),
        (24, "<I", 4),  # blobs
        (24, "<I", 1 << 31),
        (28, "<I", 1),  # runs
        (28, "<I", 0xFFFF_FFFF),
        (HEAD + 32, "<Q", 0),  # a blob's size
        (HEAD + 32, "<Q", 1 << 50),
        (HEAD + 32, "<Q", CHUNK_BYTES + 1),
        (HEAD + 3 * BLOB, "<I", 199),  # first run behind the second
        (HEAD + 3 * BLOB + 4, "<I", 0),  # of no chunk
        (HEAD + 3 * BLOB + 4, "<I", 0xFFFF_FFFF),
        (HEAD + 3 * BLOB + 8, "<I", 3),  # of no blob
        (HEAD + 3 * BLOB + 12, "<I", 100),  # behind its blob's end
        (HEAD + 3 * BLOB + 12, "<I", 0xFFFF_FFFF),
    ],
)
def test_map_that_is_not_one_is_refused(at: int, form: str, value: int) -> None:
    data = some_map()[0].encode()
    decode_map(data)
    with pytest.raises(LayerDamaged):
        decode_map(changed(data, at, form, value))


def test_cut_or_longer_or_other_bytes_are_refused() -> None:
    made, _ = some_map()
    data = made.encode()
    for length in (0, 7, HEAD - 1, HEAD, HEAD + 50, len(data) - 1):
        with pytest.raises(LayerDamaged):
            decode_map(data[:length])
    with pytest.raises(LayerDamaged):
        decode_map(data + b"\0")
    with pytest.raises(LayerDamaged, match="another digest"):
        decode_map(data, PARENT)
    twice = data[:HEAD] + data[HEAD : HEAD + BLOB] * 2 + data[HEAD + 2 * BLOB :]
    with pytest.raises(LayerDamaged, match="twice"):
        decode_map(twice)


def test_random_bytes_never_do_worse_than_being_refused() -> None:
    draw = random.Random(3)
    data = some_map()[0].encode()
    for _ in range(2000):
        out = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            out[draw.randrange(len(out))] = draw.randrange(256)
        try:
            found = decode_map(bytes(out))
        except LayerDamaged:
            continue
        for chunk in (0, found.count // 2, found.count - 1):
            place = found.find(chunk)
            assert place is None or place.chunk < found.blobs[place.blob].count
