"""Fields: what is written is read again, and every other byte is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import InvalidRequest
from skerry.wire.fields import FieldBuilder, Fields
from skerry.wire.frames import ProtocolError, Tag

PAIRS = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=20)), max_size=6)


def build(pairs) -> bytes:
    out = FieldBuilder()
    for tag, value in pairs:
        out.raw(tag, value)
    return out.payload()


@given(PAIRS)
def test_repeated_tags_make_lists_in_order(pairs):
    fields = Fields(build(pairs))
    for tag in Tag:
        assert fields.raws(tag) == tuple(value for key, value in pairs if key == tag)


@given(PAIRS, st.data())
def test_cut_anywhere_is_whole_only_at_the_end_of_a_field(pairs, data):
    payload = build(pairs)
    cut = data.draw(st.integers(0, len(payload)))
    ends = {len(build(pairs[:count])) for count in range(len(pairs) + 1)}
    if cut in ends:
        Fields(payload[:cut])
    else:
        with pytest.raises(ProtocolError):
            Fields(payload[:cut])


@given(st.binary(max_size=200))
def test_garbage_is_fields_or_an_error(garbage):
    try:
        fields = Fields(garbage)
    except ProtocolError:
        return
    total = sum(len(value) + 5 for tag in range(256) for value in fields.by_tag.get(tag, ()))
    assert total == len(garbage)


@given(st.integers(0, (1 << 63) - 1))
def test_number_is_read_again(value):
    assert Fields(FieldBuilder().u64(Tag.PID, value).payload()).u64(Tag.PID) == value


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_number_out_of_range_is_not_written(value):
    with pytest.raises(InvalidRequest):
        FieldBuilder().u64(Tag.PID, value)


@pytest.mark.parametrize("size", [0, 7, 9])
def test_number_of_another_size_is_refused(size):
    fields = Fields(build([(Tag.PID, bytes(size))]))
    with pytest.raises(ProtocolError, match="PID"):
        fields.u64(Tag.PID)
    with pytest.raises(ProtocolError, match="PID"):
        fields.numbers(Tag.PID)


def test_number_beyond_its_bounds_is_refused():
    fields = Fields(FieldBuilder().u64(Tag.PORT, 65_536).u64(Tag.PID, 1 << 63).payload())
    with pytest.raises(ProtocolError, match="65536"):
        fields.u64(Tag.PORT, 1, 65_535)
    with pytest.raises(ProtocolError, match="PID"):
        fields.u64(Tag.PID)


def test_missing_and_repeated_fields_are_refused():
    fields = Fields(build([(Tag.CWD, b"/a"), (Tag.CWD, b"/b")]))
    with pytest.raises(ProtocolError, match="USER is missing"):
        fields.raw(Tag.USER)
    with pytest.raises(ProtocolError, match="CWD is there 2 times"):
        fields.raw(Tag.CWD)
    assert Tag.CWD in fields
    assert Tag.USER not in fields


def test_nul_is_neither_written_nor_read():
    with pytest.raises(InvalidRequest, match="NUL"):
        FieldBuilder().word(Tag.ARG, b"a\0b")
    with pytest.raises(InvalidRequest, match="NUL"):
        FieldBuilder().text(Tag.CWD, "a\0b")
    fields = Fields(build([(Tag.ARG, b"a\0b")]))
    for read in (fields.word, fields.text, fields.words, fields.texts):
        with pytest.raises(ProtocolError, match="NUL"):
            read(Tag.ARG)


@given(st.binary(max_size=50).filter(lambda value: 0 not in value))
def test_text_that_is_no_utf8_survives_as_surrogate_escapes(value):
    text = Fields(build([(Tag.ERROR_STEP, value)])).text(Tag.ERROR_STEP)
    assert FieldBuilder().text(Tag.ERROR_STEP, text).payload() == build([(Tag.ERROR_STEP, value)])


def test_text_longer_than_its_limit_is_refused():
    with pytest.raises(ProtocolError, match="at most 3"):
        Fields(build([(Tag.ERROR_STEP, b"exec")])).text(Tag.ERROR_STEP, 3)
