"""Messages of the guest channel: coded both ways, refused in the wrong place or out of range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import InvalidRequest
from skerry.wire import guest, streams
from skerry.wire.fields import FieldBuilder
from skerry.wire.frames import Frame, FrameDecoder, GuestFrame, ProtocolError, Tag, decode_frame
from skerry.wire.guest_cells import CELLS_MAX, Cell, CellIs, Rlimits, ZygoteIs
from skerry.wire.starts import START_MORE_MAX, encode_start
from skerry.wire.streams import place_of

NUMBER = st.integers(0, guest.NUMBER_MAX)
WORD = st.binary(max_size=20).filter(lambda value: 0 not in value)
OP_ID = st.binary(min_size=16, max_size=16)
HANDLE = st.integers(1, streams.HANDLE_MAX)
PORT = st.integers(1, 65_535)
STEP = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40)
SIZE = st.integers(0, guest.PTY_MAX)
CONTROL_STREAM = 9 << 2

MAYBE = st.none() | NUMBER
RLIMITS = st.builds(Rlimits, fsize=MAYBE, nofile=MAYBE, stack=MAYBE, core=MAYBE)
STARTS = st.builds(
    guest.Start,
    op_id=OP_ID,
    kind=st.integers(0, 4),
    argv=st.lists(WORD, min_size=1, max_size=4).map(tuple),
    env=st.lists(WORD, max_size=4).map(tuple),
    cwd=st.none() | WORD,
    user=st.none() | WORD,
    timeout_ms=st.none() | NUMBER,
    no_output_ms=st.none() | NUMBER,
    script=st.none() | st.binary(max_size=20),
    stdin=st.booleans(),
    cell=st.none() | st.integers(0, CELLS_MAX - 1),
    cpu_ms=st.none() | NUMBER,
    rlimits=st.none() | RLIMITS.map(Rlimits.payload),
    result=st.none() | st.booleans(),
)
CELL = st.integers(0, CELLS_MAX - 1)
FROM_HOST = st.one_of(
    st.tuples(st.builds(guest.Hello, OP_ID), st.just(0)),
    st.tuples(st.builds(guest.Ping, st.binary(max_size=64)), st.just(0)),
    st.tuples(STARTS, st.just(CONTROL_STREAM)),
    st.tuples(st.builds(guest.Signal, st.integers(1, 64)), st.just(CONTROL_STREAM)),
    st.tuples(st.builds(guest.Resize, SIZE, SIZE), st.just(CONTROL_STREAM)),
    st.tuples(st.builds(guest.Attach, NUMBER, NUMBER), st.just(CONTROL_STREAM)),
    st.tuples(st.builds(guest.Listen, PORT), st.just(CONTROL_STREAM)),
    st.tuples(st.builds(guest.Credit, NUMBER), st.sampled_from([4 | 1, 4 | 2, 4 | 3, 0x80000006])),
    st.tuples(
        st.builds(Cell, cell=CELL, action=st.integers(1, 2), disk=MAYBE, inodes=MAYBE), st.just(0)
    ),
    st.tuples(st.builds(guest.Eof, NUMBER), st.sampled_from([4 | 1, 0x80000005])),
    st.tuples(st.just(guest.Cancel()), st.just(CONTROL_STREAM)),
    st.tuples(st.builds(guest.More, st.binary(min_size=1, max_size=50)), st.just(CONTROL_STREAM)),
    st.tuples(st.builds(guest.Hold, st.booleans()), st.just(0)),
    st.tuples(st.just(guest.Ack()), st.just(CONTROL_STREAM)),
    st.tuples(st.just(guest.Unlisten()), st.just(CONTROL_STREAM)),
    st.tuples(st.just(guest.Reset()), st.just(0x80000004)),
    st.tuples(st.builds(guest.Connect, PORT), st.just(0xC0000004)),
)
DONES = st.builds(
    guest.Done,
    signal=st.integers(1, 64),
    timed_out=st.booleans(),
    oom=st.booleans(),
    start_ns=NUMBER,
    stdout_total=NUMBER,
    cpu_limit=st.none() | st.booleans(),
    disk_used=MAYBE,
    result_total=MAYBE,
)
DATA = st.builds(guest.Data, st.integers(0, 1 << 62), st.binary(max_size=50))
FROM_AGENT = st.one_of(
    st.tuples(st.builds(guest.Pong, st.binary(max_size=64)), st.just(0)),
    st.tuples(st.builds(guest.Started, st.integers(0, guest.PID_MAX)), st.just(CONTROL_STREAM)),
    st.tuples(DONES, st.just(CONTROL_STREAM)),
    st.tuples(st.builds(guest.Opened, HANDLE, PORT), st.just(0x80000004)),
    st.tuples(st.builds(guest.Opened, st.none(), PORT), st.just(0xC0000004)),
    st.tuples(st.builds(guest.Error, st.integers(0, 4095), STEP), NUMBER.map(lambda n: n % 2**32)),
    st.tuples(DATA, st.sampled_from([4 | 1, 4 | 2, 4 | 3, 0x80000006])),
    st.tuples(st.builds(guest.Credit, NUMBER), st.sampled_from([4 | 1, 0x80000005])),
    st.tuples(st.builds(CellIs, cell=CELL, state=st.integers(1, 2)), st.just(0)),
    st.tuples(
        st.builds(CellIs, cell=CELL, state=st.just(3), error_step=STEP, errno=st.integers(0, 4095)),
        st.just(0),
    ),
    st.tuples(st.builds(ZygoteIs, state=st.just(1)), st.just(0)),
    st.tuples(
        st.builds(ZygoteIs, state=st.just(3), error_step=STEP, errno=st.integers(0, 4095)),
        st.just(0),
    ),
)


@given(FROM_HOST)
def test_message_of_the_host_is_read_again(pair):
    message, stream = pair
    frame = decode_frame(guest.encode(message, 3, stream))
    assert (frame.generation, frame.stream) == (3, stream)
    assert guest.from_host(frame) == message


@given(FROM_AGENT)
def test_message_of_the_agent_is_read_again(pair):
    message, stream = pair
    assert guest.from_agent(decode_frame(guest.encode(message, 3, stream))) == message


@given(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=120))
def test_any_frame_is_a_message_or_a_protocol_error(type_, stream, payload):
    for decode in (guest.from_agent, guest.from_host):
        try:
            message = decode(Frame(type_, 1, stream, payload))
        except ProtocolError:
            continue
        assert type_ == message.CODE


@given(FROM_AGENT, st.data())
def test_cut_message_is_another_or_a_protocol_error(pair, data):
    message, stream = pair
    payload = message.payload()
    cut = data.draw(st.integers(0, len(payload)))
    try:
        guest.from_agent(Frame(message.CODE, 1, stream, payload[:cut]))
    except ProtocolError:
        return


WRONG_PLACES = [
    (guest.Pong(b"1"), 4),
    (guest.Started(1), 0),
    (guest.Started(1), 4 | 2),
    (guest.Done(exit_code=0), 4 | 1),
    (guest.Done(exit_code=0), 0x80000004),
    (guest.Data(0, b""), 4),
    (guest.Data(0, b""), 2),
    (guest.Data(0, b""), 0x80000005),
    (guest.Data(0, b""), 0x80000007),
    (guest.Eof(0), 0x80000005),
    (guest.Credit(0), 4 | 2),
    (guest.Credit(0), 0x80000006),
    (CellIs(cell=1, state=1), 4),
    (CellIs(cell=1, state=1), 0x80000004),
    (ZygoteIs(state=1), 4),
    (guest.Opened(1, 1), 4),
    (guest.Reset(), 4),
    (guest.Reset(), 0x80000006),
]


@pytest.mark.parametrize(("message", "stream"), WRONG_PLACES)
def test_message_of_the_agent_on_a_wrong_stream_is_refused(message, stream):
    with pytest.raises(ProtocolError, match="on stream"):
        guest.from_agent(decode_frame(guest.encode(message, 1, stream)))


@pytest.mark.parametrize("stream", [4, 0x80000004, 0xC0000005])
def test_connect_on_a_stream_that_is_not_the_hosts_is_refused(stream):
    with pytest.raises(ProtocolError, match="on stream"):
        guest.from_host(decode_frame(guest.encode(guest.Connect(1), 1, stream)))


CELL_ASKED = Cell(cell=1, action=1)


@pytest.mark.parametrize("message", [guest.Cancel(), guest.Ping(b"1"), guest.Ack(), CELL_ASKED])
def test_message_in_the_wrong_direction_is_refused(message):
    with pytest.raises(ProtocolError, match="of type"):
        guest.from_agent(decode_frame(guest.encode(message, 1, 4)))


def number(tag, value):
    return FieldBuilder().u64(tag, value).payload()


BAD_PAYLOADS = [
    (GuestFrame.STARTED, 4, number(Tag.PID, 1 << 31)),
    (GuestFrame.DONE, 4, b""),
    (GuestFrame.DONE, 4, number(Tag.EXIT_CODE, 256)),
    (GuestFrame.DONE, 4, number(Tag.SIGNO, 0)),
    (GuestFrame.DONE, 4, number(Tag.SIGNO, 65)),
    (GuestFrame.DONE, 4, number(Tag.EXIT_CODE, 0) + number(Tag.SIGNO, 9)),
    (GuestFrame.DONE, 4, number(Tag.EXIT_CODE, 0) * 2),
    (GuestFrame.DONE, 4, number(Tag.EXIT_CODE, 0) + number(Tag.ERRNO, 2)),
    (GuestFrame.DONE, 4, number(Tag.EXIT_CODE, 0) + number(Tag.OOM, 2)),
    (GuestFrame.DONE, 4, number(Tag.EXIT_CODE, 0) + number(Tag.STDOUT_TOTAL, 1 << 63)),
    (GuestFrame.DONE, 4, FieldBuilder().text(Tag.ERROR_STEP, "exec").payload()),
    (GuestFrame.DONE, 4, FieldBuilder().text(Tag.ERROR_STEP, "x" * 257).u64(32, 1).payload()),
    (GuestFrame.OPENED, 0x80000004, number(Tag.HANDLE, 1) + number(Tag.PORT, 0)),
    (GuestFrame.OPENED, 0x80000004, number(Tag.HANDLE, 1 << 29) + number(Tag.PORT, 1)),
    (GuestFrame.ERROR, 4, number(Tag.ERRNO, 4096)),
    (GuestFrame.DONE, 4, number(Tag.EXIT_CODE, 0) + number(Tag.CPU_LIMIT, 2)),
    (GuestFrame.DONE, 4, number(Tag.EXIT_CODE, 0) + number(Tag.RESULT_TOTAL, 1 << 63)),
    (GuestFrame.CELL_IS, 0, number(Tag.CELL, 1)),
    (GuestFrame.CELL_IS, 0, number(Tag.STATE, 1)),
    (GuestFrame.CELL_IS, 0, number(Tag.CELL, CELLS_MAX) + number(Tag.STATE, 1)),
    (GuestFrame.CELL_IS, 0, number(Tag.CELL, 1) + number(Tag.STATE, 0)),
    (GuestFrame.CELL_IS, 0, number(Tag.CELL, 1) + number(Tag.STATE, 4)),
    (GuestFrame.CELL_IS, 0, number(Tag.CELL, 1) + number(Tag.STATE, 3)),
    (GuestFrame.CELL_IS, 0, number(Tag.CELL, 1) + number(Tag.STATE, 1) + number(Tag.ERRNO, 2)),
    (GuestFrame.CELL_IS, 0, number(Tag.CELL, 1) * 2 + number(Tag.STATE, 1)),
    (GuestFrame.ZYGOTE_IS, 0, b""),
    (GuestFrame.ZYGOTE_IS, 0, number(Tag.STATE, 2)),
    (GuestFrame.ZYGOTE_IS, 0, number(Tag.STATE, 3)),
    (GuestFrame.DATA, 6, ((1 << 63) - 1).to_bytes(8, "little")),
    (GuestFrame.EOF, 6, b"x"),
    (GuestFrame.RESET, 0x80000004, b"x"),
]


@pytest.mark.parametrize(("type_", "stream", "payload"), BAD_PAYLOADS)
def test_value_out_of_range_from_inside_is_refused(type_, stream, payload):
    with pytest.raises(ProtocolError):
        guest.from_agent(Frame(type_, 1, stream, payload))


def test_unknown_tags_are_ignored():
    payload = number(Tag.PID, 7) + FieldBuilder().raw(200, b"later").payload()
    assert guest.from_agent(Frame(GuestFrame.STARTED, 1, 4, payload)) == guest.Started(7)


def test_welcome_lists_operations_once_each():
    known = guest.KnownOperation(3, bytes(16), True, 5, 6)
    welcome = guest.Welcome(bytes(16), 2, b"0.1.0", (known.payload(),))
    parsed = guest.from_agent(decode_frame(guest.encode(welcome, 2, 0)))
    assert parsed.operations() == (known,)
    twice = guest.Welcome(bytes(16), 2, b"0.1.0", (known.payload(), known.payload()))
    with pytest.raises(ProtocolError, match="one handle"):
        twice.operations()


def test_call_needs_no_program():
    call = guest.Start(op_id=bytes(16), kind=guest.CALL_KIND, script=b"{}")
    assert guest.from_host(decode_frame(guest.encode(call, 1, 4))) == call


@pytest.mark.parametrize(
    "fields", [{"argv": ()}, {"argv": (), "kind": 4}, {"argv": (b"a",), "rows": 1}]
)
def test_start_that_is_half_is_refused(fields):
    start = guest.Start(op_id=bytes(16), **fields)
    with pytest.raises(ProtocolError, match="START"):
        guest.from_host(decode_frame(guest.encode(start, 1, 4)))


def test_stream_ids_name_their_place():
    assert place_of(streams.operation_stream(9, streams.STDERR)) == (False, 9, 3)
    assert place_of(streams.forward_stream(9, streams.OUTWARD)) == (True, 9, 2)


@pytest.mark.parametrize("size", [1, 65_400, 65_537, 400_000, 2_000_000])
def test_start_of_any_length_comes_back_from_its_frames(size):
    start = guest.Start(op_id=bytes(16), argv=(b"x" * size,), env=(b"A=b",))
    frames = FrameDecoder().feed(encode_start(start, 3, 9))
    assert {frame.stream for frame in frames} == {CONTROL_STREAM}
    assert [frame.type for frame in frames[1:]] == [GuestFrame.MORE] * (len(frames) - 1)
    payload = b"".join(frame.payload for frame in frames)
    if len(frames) > 1:
        announced = int.from_bytes(payload[5:13], "little")
        assert (payload[0], announced) == (Tag.MORE, len(payload) - len(frames[0].payload))
        payload = payload[13:]
    assert guest.Start.parse(payload) == start if size < 65_536 else payload == start.payload()


def test_start_longer_than_it_may_be_is_not_encoded():
    start = guest.Start(op_id=bytes(16), argv=(b"x" * (START_MORE_MAX + 70_000),))
    with pytest.raises(InvalidRequest, match="too many for one command"):
        encode_start(start, 3, 9)
