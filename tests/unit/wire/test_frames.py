"""Frames: equal to the C side's, whole however they are cut, and deaf to garbage."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import InvalidRequest
from skerry.wire import guest, replies
from skerry.wire.frames import (
    DATA_BYTES_MAX,
    HEADER_BYTES,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    VERSION,
    WINDOW,
    Frame,
    FrameDecoder,
    GuestFrame,
    LauncherFrame,
    ProtocolError,
    Tag,
    data_offset,
    decode_frame,
    encode_data,
    encode_frame,
)

NATIVE = Path(__file__).parents[3] / "native"
U32 = st.integers(0, (1 << 32) - 1)
FRAMES = st.builds(Frame, st.integers(0, 255), U32, U32, st.binary(max_size=300))


def header_enum(name: str, prefix: str) -> dict[str, int]:
    text = (NATIVE / "frames" / "protocol.h").read_text()
    body = re.search(rf"enum {name} \{{(.*?)\}}", text, re.DOTALL)[1]
    pairs = re.findall(rf"{prefix}(\w+) = (0x[0-9A-Fa-f]+|\d+)", body)
    return {key: int(value, 0) for key, value in pairs}


@pytest.mark.parametrize(
    ("enum", "name", "prefix"),
    [
        (GuestFrame, "guest_frame", "G_"),
        (LauncherFrame, "launcher_frame", "L_"),
        (Tag, "tag", "T_"),
    ],
)
def test_codes_equal_the_header_of_the_native_side(enum, name, prefix):
    assert {member.name: member.value for member in enum} == header_enum(name, prefix)


def test_constants_equal_the_header_of_the_native_side():
    text = (NATIVE / "frames" / "frames.h").read_text()
    found = dict(re.findall(r"(FRAME_\w+|STREAM_WINDOW) = (\w+)", text))
    assert {key: int(value, 0) for key, value in found.items()} == {
        "FRAME_MAGIC": MAGIC,
        "FRAME_VERSION": VERSION,
        "FRAME_HEADER": HEADER_BYTES,
        "FRAME_PAYLOAD_MAX": PAYLOAD_BYTES_MAX,
        "STREAM_WINDOW": WINDOW,
    }


def golden() -> dict[str, bytes]:
    lines = (NATIVE / "tests" / "golden" / "frames.txt").read_text().splitlines()
    return {name: bytes.fromhex(text) for name, text in (line.split() for line in lines)}


FROM_HOST = {
    "hello",
    "ping",
    "start_command",
    "start_terminal",
    "credit",
    "cancel",
    "attach",
    "connect",
    "hold",
    "start_call",
    "cell",
}


def test_golden_frames_mean_the_same_on_both_sides():
    frames = golden()
    assert len(frames) >= 23
    for name, packet in frames.items():
        if name.startswith("launcher_"):
            reply = replies.decode(packet)
            again = encode_frame(LauncherFrame.FAIL, 0, reply.request_id, reply.failure.payload())
            assert again == packet, name
            continue
        frame = decode_frame(packet)
        decode = guest.from_host if name in FROM_HOST else guest.from_agent
        message = decode(frame)
        again = guest.encode(message, frame.generation, frame.stream)
        # A failed DONE may leave out its zeros.
        assert again == packet or name == "done_failed", name
        assert decode(decode_frame(again)) == message


@given(st.lists(FRAMES, max_size=5), st.data())
def test_any_cut_of_a_stream_gives_the_same_frames(frames, data):
    stream = b"".join(encode_frame(*frame) for frame in frames)
    decoder = FrameDecoder()
    found = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += decoder.feed(stream[:size])
        stream = stream[size:]
    assert found == frames


def test_stream_fed_byte_by_byte_gives_the_same_frames():
    frames = [Frame(1, 2, 3, b""), Frame(4, 5, 6, b"abc"), Frame(7, 0, 9, bytes(70))]
    decoder = FrameDecoder()
    found = []
    for byte in b"".join(encode_frame(*frame) for frame in frames):
        found += decoder.feed(bytes([byte]))
    assert found == frames


@given(st.binary(min_size=16, max_size=200))
def test_garbage_breaks_the_decoder_for_good(garbage):
    decoder = FrameDecoder()
    if garbage[:3] == b"\x53\x4b\x01":
        return
    with pytest.raises(ProtocolError):
        decoder.feed(garbage)
    with pytest.raises(ProtocolError):
        decoder.feed(encode_frame(1, 2, 3, b""))


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [(0, 0, "magic"), (1, 0, "magic"), (2, 2, "version"), (14, 2, "bytes, at most")],
)
def test_wrong_header_is_named(position, value, message):
    packet = bytearray(encode_frame(1, 2, 3, b""))
    packet[position] = value
    with pytest.raises(ProtocolError, match=message):
        FrameDecoder().feed(bytes(packet))


def test_length_beyond_the_limit_is_refused_before_its_bytes_come():
    packet = bytearray(encode_frame(1, 2, 3, b""))
    packet[12:16] = (PAYLOAD_BYTES_MAX + 1).to_bytes(4, "little")
    with pytest.raises(ProtocolError, match="65537"):
        FrameDecoder().feed(bytes(packet))


def test_frames_before_a_broken_one_in_the_same_bytes_are_lost_with_it():
    decoder = FrameDecoder()
    with pytest.raises(ProtocolError):
        decoder.feed(encode_frame(1, 2, 3, b"ok") + bytes(16))


def test_decoder_holds_less_than_one_frame():
    decoder = FrameDecoder()
    packet = encode_frame(1, 2, 3, bytes(PAYLOAD_BYTES_MAX))
    for start in range(0, len(packet) - 1, 1000):
        decoder.feed(packet[start : min(start + 1000, len(packet) - 1)])
        assert len(decoder._rest) < decoder._need <= HEADER_BYTES + PAYLOAD_BYTES_MAX
    assert decoder.feed(packet[-1:]) == [Frame(1, 2, 3, bytes(PAYLOAD_BYTES_MAX))]


def test_payload_beyond_the_limit_is_not_encoded():
    assert len(encode_frame(1, 2, 3, bytes(PAYLOAD_BYTES_MAX))) == HEADER_BYTES + PAYLOAD_BYTES_MAX
    with pytest.raises(InvalidRequest, match="65537"):
        encode_frame(1, 2, 3, bytes(PAYLOAD_BYTES_MAX + 1))
    with pytest.raises(InvalidRequest, match="DATA"):
        encode_data(1, 2, 0, bytes(DATA_BYTES_MAX + 1))


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=100))
def test_data_carries_offset_and_content(offset, content):
    frame = decode_frame(encode_data(3, 6, offset, memoryview(content)))
    assert frame[:3] == (GuestFrame.DATA, 3, 6)
    assert data_offset(frame.payload) == offset
    assert frame.payload[8:] == content


def test_data_without_an_offset_is_refused():
    with pytest.raises(ProtocolError, match="offset"):
        data_offset(bytes(7))


@pytest.mark.parametrize("packet", [b"", encode_frame(1, 0, 1) * 2, encode_frame(1, 0, 1) + b"x"])
def test_packet_that_is_not_exactly_one_frame_is_refused(packet):
    with pytest.raises(ProtocolError):
        decode_frame(packet)
