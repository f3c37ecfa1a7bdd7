"""What a compiler made, on its way to the cell with a device: whole, bounded, and gone afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from skerry.errors import Overloaded, StorageFailed
from skerry.node.functions import artifacts as module
from skerry.node.functions.artifacts import Artifact, Artifacts

MIB = 1 << 20


async def pieces(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def content(artifact: Artifact) -> bytes:
    return b"".join([piece async for piece in artifact.pieces()])


@pytest.mark.parametrize("sizes", [(), (10,), (MIB, 1), (100_000,) * 40])
async def test_what_goes_in_comes_out_as_often_as_it_is_read(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    store = Artifacts(str(tmp_path), bytes_max=8 * MIB)
    parts = [os.urandom(size) for size in sizes]
    artifact = await store.take(pieces(parts))
    assert (store.bytes, artifact.size) == (sum(sizes), sum(sizes))
    for _ in range(2):  # a call that did not start is tried in another cell
        assert await content(artifact) == b"".join(parts)
    assert list(tmp_path.iterdir()) == []  # no name, hence nothing to clean up after a kill
    artifact.close()
    artifact.close()
    assert store.bytes == 0


async def test_all_together_are_bounded_and_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    store = Artifacts(str(tmp_path), bytes_max=3 * MIB)
    first = await store.take(pieces([bytes(2 * MIB)]))
    with pytest.raises(Overloaded) as caught:
        await store.take(pieces([bytes(MIB), b"x"]))
    assert caught.value.fields["limit"] == "function artifacts"
    assert store.bytes == 2 * MIB
    first.close()
    second = await store.take(pieces([bytes(3 * MIB)]))
    second.close()
    assert (store.bytes, store.taken) == (0, 2)


async def test_caller_that_fails_or_leaves_while_it_comes_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield bytes(2 * MIB)
        raise ConnectionError

    store = Artifacts(str(tmp_path), bytes_max=8 * MIB)
    with pytest.raises(ConnectionError):
        await store.take(broken())
    assert (store.bytes, list(tmp_path.iterdir())) == (0, [])


async def test_full_disk_is_the_platforms_fault_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(module.tempfile.SpooledTemporaryFile):
        def write(self, piece: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = Artifacts(str(tmp_path), bytes_max=8 * MIB)
    monkeypatch.setattr(module.tempfile, "SpooledTemporaryFile", Full)
    with pytest.raises(StorageFailed, match="No space left"):
        await store.take(pieces([b"x"]))
    assert store.bytes == 0
