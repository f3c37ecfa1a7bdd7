"""Launcher plans: one packet a request, and what comes back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import structs

from skerry.errors import InvalidRequest
from skerry.wire import plan, replies
from skerry.wire.fields import FieldBuilder
from skerry.wire.frames import LauncherFrame, ProtocolError, Tag, decode_frame, encode_frame

START = plan.StartPlan(
    instance="i1",
    slot=3,
    layer=("base", "work"),
    hostname="skerry",
    disk_bytes=1 << 30,
    shm_bytes=64 << 20,
    step=("mkdir /sys/fs/cgroup/a 755 100000",),
    agent_group="/sys/fs/cgroup/a/agent",
    work_group="/sys/fs/cgroup/a/w",
    tasks=("/sys/fs/cgroup/memory/a/tasks",),
    oom_file="/sys/fs/cgroup/memory/a/memory.oom_control",
    oom_kind=1,
    socket="/run/skerry/n/i/i1",
    config=plan.AgentConfig(peer_uid=0, nofile=4096, env=(b"A=1",)).payload(),
)
REQUESTS = [
    plan.Status(),
    plan.LayerMount(layer="l", path="/meta", device="/data"),
    plan.LayerMount(layer="l", path="/meta"),
    plan.LayerUnmount("l"),
    plan.UpperOpen(upper="btrfs", path="/pool"),
    plan.SlotMake(slot=(1 << 64) - 1, uid_base=100000, owner_uid=99999, step=("rmdir /a",)),
    plan.SlotMake(slot=1, uid_base=1, owner_uid=2, tasks=("/t",), profile=plan.FUNCTION),
    plan.SlotDrop(slot=1),
    START,
    structs.replace(START, tasks=("/t", "/t/cell-0"), profile=plan.FUNCTION),
    plan.Stop(instance="i1", read=("/a", "/b"), keep_upper=True),
    plan.Adopt(instance="i1", slot=1, pid=77, agent_group="/a", work_group="/w", socket="/s"),
    plan.Freeze("i1"),
    plan.Thaw("i1"),
    plan.Reclaim(instance="i1", bytes=1 << 30, step=("write /a 1",)),
    plan.Prefetch(instance="i1", bytes=0),
    plan.UpperDrop("i1"),
    plan.UpperSnapshot(instance="i1", text="name"),
    plan.Shutdown(),
    plan.Blobs(),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request_: type(request_).__name__)
def test_request_is_one_packet_and_is_read_again(request_):
    frame = decode_frame(request_.encode(7))
    assert (frame.type, frame.generation, frame.stream) == (request_.CODE, 0, 7)
    assert type(request_).parse(frame.payload) == request_


def test_configuration_of_a_container_with_cells_is_read_again():
    config = plan.AgentConfig(peer_uid=0, nofile=64, profile=plan.FUNCTION, cells=32)
    assert plan.AgentConfig.parse(config.payload()) == config
    with pytest.raises(ProtocolError, match="CFG_CELLS"):
        plan.AgentConfig.parse(structs.replace(config, cells=33).payload())


def test_every_request_of_the_page_has_a_type():
    codes = {request.CODE for request in REQUESTS}
    assert codes == {code for code in LauncherFrame if code < LauncherFrame.EXITED}


def test_names_of_fields_are_those_of_the_page():
    page = (Path(__file__).parents[3] / "native" / "PROTOCOL.md").read_text()
    for request in REQUESTS:
        for part in request.PARTS:
            assert part.name == part.tag.name.lower()
            assert re.search(rf"\b{part.tag.name}\b", page)


@pytest.mark.parametrize("request_id", [0, -1, 1 << 32])
def test_request_id_out_of_bounds_is_refused(request_id):
    with pytest.raises(InvalidRequest):
        plan.Status().encode(request_id)


def test_request_with_a_nul_or_too_long_is_refused():
    with pytest.raises(InvalidRequest, match="NUL"):
        plan.Freeze("a\0b").encode(1)
    with pytest.raises(InvalidRequest, match="fit"):
        plan.SlotDrop(slot=1, step=("rmdir /" + "a" * 66_000,)).encode(1)


def test_success_is_read_by_its_request():
    status = replies.StatusReply(pid=9, version=1, instance=("a",), layer=("l",), slot=(3, 1 << 63))
    reply = replies.decode(encode_frame(LauncherFrame.OK, 0, 5, status.payload()))
    assert isinstance(reply, replies.Reply)
    assert (reply.request_id, reply.failure) == (5, None)
    assert reply.status() == status
    started = replies.StartReply(pid=4, step_us=("clone=50",))
    assert replies.Reply(1, None, started.payload()).start() == started
    stopped = replies.StopReply(wait_status=9, read=(b"12\n", b"a\0"), slot_clean=False, text="why")
    assert replies.Reply(1, None, stopped.payload()).stop() == stopped
    upper = replies.UpperReply(("quota",))
    assert replies.Reply(1, None, upper.payload()).upper() == upper
    with pytest.raises(ProtocolError, match="PID"):
        replies.Reply(1, None).start()


def test_failure_says_step_errno_and_text():
    failure = replies.Failure(error_step="overlay", errno=22, text="no such layer")
    reply = replies.decode(encode_frame(LauncherFrame.FAIL, 0, 5, failure.payload()))
    assert reply == replies.Reply(5, failure)


def test_exit_is_an_event():
    event = replies.Exited(instance="i1", wait_status=256)
    assert replies.decode(encode_frame(LauncherFrame.EXITED, 0, 0, event.payload())) == event


@pytest.mark.parametrize(
    "packet",
    [
        encode_frame(LauncherFrame.OK, 0, 0),
        encode_frame(LauncherFrame.FAIL, 0, 0),
        encode_frame(
            LauncherFrame.EXITED, 0, 1, replies.Exited(instance="i", wait_status=0).payload()
        ),
        encode_frame(LauncherFrame.STATUS, 0, 1),
        encode_frame(LauncherFrame.FAIL, 0, 1, FieldBuilder().u64(Tag.ERRNO, 5000).payload()),
        b"x" * 20,
    ],
)
def test_packet_that_is_no_answer_is_refused(packet):
    with pytest.raises(ProtocolError):
        replies.decode(packet)
