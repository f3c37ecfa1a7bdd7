"""Transfers that tell their own end: any cut of one is read the same, and only a whole one ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import FileRefused
from skerry.wire.pieces import END, PieceReader, failed, head_of


def read(chunks: list[bytes]) -> tuple[bytes, PieceReader]:
    reader = PieceReader()
    return b"".join(piece for chunk in chunks for piece in reader.feed(chunk)), reader


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(data[at : at + size])
        at += size
    return [*chunks, data[at:]]


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.lists(st.integers(min_value=0, max_value=12)),
    st.booleans(),
)
def test_transfer_is_read_alike_however_it_is_cut(pieces, sizes, fails):
    error = FileRefused("it was killed", errno=4)
    end = failed(error) if fails else END
    data = b"".join(head_of(piece) + piece for piece in pieces) + end
    got, reader = read(cut(data, sizes))
    assert got == b"".join(pieces)
    assert reader.ended is not fails
    told = reader.error()
    assert isinstance(told, FileRefused) is fails
    assert told is None or told.fields == {"errno": 4}


@pytest.mark.parametrize("size", range(13))
def test_transfer_that_is_cut_has_no_end(size):
    data = head_of(b"abcde") + b"abcde" + failed(FileRefused("x"))
    got, reader = read([data[:size]])
    assert got == b"abcde"[: max(0, size - 4)]
    assert not reader.ended
    assert reader.error() is None


@given(st.lists(st.binary(max_size=50)))
def test_no_bytes_break_the_reader(chunks):
    read(chunks)
