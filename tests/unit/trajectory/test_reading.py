"""A log is read back as the events that its node recorded: in order, in pages, while it is written."""

from __future__ import annotations

import hashlib

import msgspec
import pytest

from skerry.errors import NotFound
from skerry.node.ledger import (
    Answered,
    Asked,
    Changed,
    Did,
    Doing,
    SessionBegan,
    SessionEnded,
    Stood,
    Void,
)
from skerry.spec.command import CommandSpec, RunResult
from skerry.spec.sandbox import SandboxSpec, State
from skerry.spec.session import SessionSpec
from skerry.spec.trajectory import Outcome
from skerry.trajectory.reading import log as reading
from skerry.trajectory.reading.log import Log
from skerry.trajectory.reading.sources import Directory
from skerry.wire.http import ErrorBody
from trajectory_stories import NODE, Story, sandbox_id


@pytest.fixture
def story(tmp_path):
    story = Story(str(tmp_path / "journal"))
    yield story
    story.close()


def log_of(story: Story) -> Log:
    return Log(Directory(story.directory, NODE))


def events(story: Story, sandbox: str) -> list:
    return list(log_of(story).events(sandbox))


def test_commands_are_events_in_the_order_in_which_they_were_asked(story):
    sandbox = story.create(1, rollout="r-1", job="j")
    first = story.ask(sandbox, "sleep", "9")
    second = story.run(sandbox, "echo", "hi", stdout=b"hi\n", cpu_seconds=0.25)
    story.answer(sandbox, first, exit_code=None, signal=9, ended=1_700_000_009.0)
    create, one, two = events(story, sandbox)
    assert [e.ordinal for e in (create, one, two)] == [0, 1, 2]
    assert (create.action, create.outcome) == ("create", Outcome.DONE)
    assert create.request["rollout"] == "r-1"
    assert create.result == {"digests": ["sha256:00"], "create_ms": 12.5}
    assert (one.action, one.op, one.request) == ("run", first.hex(), {"argv": ["sleep", "9"]})
    assert (one.started, one.ended) == (1_700_000_001.0, 1_700_000_009.0)
    assert one.result["signal"] == 9
    assert (two.op, two.outcome) == (second.hex(), Outcome.DONE)
    assert two.result["stdout"] == {"bytes": 3, "text": "hi\n"}
    assert two.usage == {"cpu_seconds": 0.25}
    assert {(e.rollout, e.job, e.sandbox) for e in (create, one, two)} == {("r-1", "j", sandbox)}


def test_digest_of_a_request_is_that_of_its_canonical_json(story):
    sandbox = story.create(1)
    story.run(sandbox, "true")
    event = events(story, sandbox)[1]
    assert event.request_digest == hashlib.sha256(b'{"argv":["true"]}').hexdigest()


def test_output_that_is_no_text_is_kept_byte_for_byte(story):
    sandbox = story.create(1)
    story.run(sandbox, "x", stdout=b"\xff\xfe\x00")
    event = events(story, sandbox)[1]
    assert event.result["stdout"] == {"bytes": 3, "base64": "//4A"}
    assert msgspec.json.decode(msgspec.json.encode(event))["ordinal"] == 1


def test_error_is_told_with_its_fault_and_a_lost_outcome_as_unknown(story):
    sandbox = story.create(1)
    story.fail(sandbox, story.ask(sandbox, "a"), "invalid", "caller")
    story.fail(sandbox, story.ask(sandbox, "b"), "outcome_unknown", "platform")
    _, refused, lost = events(story, sandbox)
    assert (refused.outcome, refused.result) == (Outcome.ERROR, None)
    assert (refused.error["code"], refused.error["fault"]) == ("invalid", "caller")
    assert (lost.outcome, lost.error["code"]) == (Outcome.UNKNOWN, "outcome_unknown")


def test_command_without_an_answer_runs_until_its_sandbox_ends_and_is_unknown_then(story):
    sandbox = story.create(1)
    story.ask(sandbox, "sleep", "9")
    log = log_of(story)
    event = log.page(sandbox).events[1]
    assert (event.outcome, event.result, event.ended) == (Outcome.RUNNING, None, 0.0)
    story.end(sandbox, State.FAILED, reason="its host was lost", lost=True)
    _, event, end = log.page(sandbox).events
    assert event.outcome is Outcome.UNKNOWN
    assert (end.action, end.outcome, end.error["fault"]) == ("fail", Outcome.ERROR, "platform")


def test_command_that_never_left_is_void_and_keeps_its_place_when_it_runs_later(story):
    sandbox = story.create(1)
    op = story.ask(sandbox, "a")
    story.ledger.append(sandbox, Void(op))
    story.run(sandbox, "b")
    assert [e.outcome for e in events(story, sandbox)][1:] == [Outcome.VOID, Outcome.DONE]
    story.ask(sandbox, "a", op=op)
    story.answer(sandbox, op)
    _, again, other = events(story, sandbox)
    assert (again.request["argv"], again.outcome) == (["a"], Outcome.DONE)
    assert other.request["argv"] == ["b"]


def test_command_that_is_recorded_again_while_it_runs_is_one_event(story):
    sandbox = story.create(1)
    op = story.ask(sandbox, "a")
    story.ask(sandbox, "a", op=op)
    story.answer(sandbox, op)
    assert len(events(story, sandbox)) == 2


def test_what_else_is_done_to_a_sandbox_is_an_event_each(story):
    sandbox = story.create(1, labels={"a": "1"})
    ledger = story.ledger
    ledger.append(sandbox, SessionBegan("main", SessionSpec(), "/bin/bash", b"o" * 16, 2, 1.0))
    ledger.append(sandbox, Stood(paused=True))  # the node's own memory, beside what was done
    ledger.append(sandbox, Did("pause", result={"freed_bytes": 5}, started=3.0, ended=4.0))
    ledger.append(sandbox, Changed(SandboxSpec(labels={"a": "1"}, network=("pypi",))))
    ledger.append(sandbox, Did("network", {"network": ["pypi"]}, result={}))
    ledger.append(sandbox, SessionEnded("main"))
    story.end(sandbox, reason="idle")
    told = events(story, sandbox)[1:]
    assert [(event.action, event.request) for event in told] == [
        ("session.create", {"id": "main"}),
        ("pause", {}),
        ("network", {"network": ["pypi"]}),
        ("session.close", {"id": "main"}),
        ("stop", {}),
    ]
    assert (told[1].result, told[1].started, told[1].ended) == ({"freed_bytes": 5}, 3.0, 4.0)
    assert told[-1].result == {"reason": "idle"}


def test_operation_that_was_announced_is_one_event_with_all_that_was_asked(story):
    sandbox = story.create(1)
    ledger = story.ledger
    one, other, lost = b"1" * 16, b"2" * 16, b"3" * 16
    content = {"blob": "0" * 64, "bytes": 9000}
    ledger.append(sandbox, Doing(one, "file.write", {"path": "/a"}, 1.0))
    ledger.append(sandbox, Doing(other, "file.mkdir", {"path": "/b"}, 2.0))
    ledger.append(sandbox, Doing(lost, "file.move", {"path": "/c"}, 3.0))
    error = ErrorBody("file_refused", "sandbox", "it is there", retryable=False)
    did = Did("file.mkdir", {"path": "/b"}, other, error=error, started=2.0, ended=2.5)
    ledger.append(sandbox, did)
    asked = {"path": "/a", "content": content, "small": b"bytes"}
    usage = {"cpu_seconds": 0.5}
    ledger.append(sandbox, Did("file.write", asked, one, result={"size": 9000}, usage=usage))
    story.end(sandbox)
    write, mkdir, move = events(story, sandbox)[1:4]
    assert (write.action, write.op, write.result) == ("file.write", one.hex(), {"size": 9000})
    assert write.request == {
        "path": "/a",
        "content": content,
        "small": {"bytes": 5, "text": "bytes"},
    }
    assert (write.started, write.usage) == (1.0, usage)
    assert (mkdir.outcome, mkdir.error["fault"], mkdir.ended) == (Outcome.ERROR, "sandbox", 2.5)
    assert (move.outcome, move.request) == (Outcome.UNKNOWN, {"path": "/c"})


def test_contents_kept_beside_a_command_stand_in_its_event(story):
    sandbox = story.create(1)
    blob = {"blob": "1" * 64, "bytes": 100_000}
    dropped = {"dropped": True, "sha256": "2" * 64, "bytes": 1 << 30}
    op = b"1" * 16
    command = CommandSpec(argv=("cat",))
    asked = Asked(op, 1, op, b"f" * 16, command, 1.0, stdin_spooled=100_000, kept={"stdin": blob})
    story.ledger.append(sandbox, asked)
    result = RunResult(exit_code=0, stdout_total=1 << 30, stderr=b"few")
    kept = {"stdout": dropped}
    story.ledger.append(sandbox, Answered(op, 1.0, result, spooled=(1,), kept=kept))
    event = events(story, sandbox)[1]
    assert event.request["stdin"] == blob
    assert event.result["stdout"] == dropped
    assert event.result["stderr"] == {"bytes": 3, "text": "few"}


def test_creation_that_failed_is_an_error_of_the_create(story):
    from skerry.node.ledger import Began

    sandbox = sandbox_id(9)
    story.ledger.append(sandbox, Began(SandboxSpec(), (), 1.0))
    story.end(sandbox, State.FAILED, reason="no such layer")
    create, end = events(story, sandbox)
    assert (create.outcome, create.error["message"]) == (Outcome.ERROR, "no such layer")
    assert end.action == "fail"


def test_record_is_complete_once_it_began_and_ended_here(story):
    sandbox = story.create(1)
    log = log_of(story)
    info = log.info(sandbox)
    assert (info.state, info.complete, info.ended) == ("live", False, None)
    story.end(sandbox)
    info = log.info(sandbox)
    assert (info.state, info.complete, info.events, info.node) == ("stopped", True, 2, NODE)
    story.ledger.forget(sandbox)
    assert log.info(sandbox).state == "deleted"


def test_pages_together_are_the_whole_and_each_is_bounded(story, monkeypatch):
    sandbox = story.create(1)
    for number in range(30):
        story.run(sandbox, "echo", str(number), stdout=b"x" * 5000)
    log = log_of(story)
    whole = list(log.events(sandbox))
    assert [event.ordinal for event in whole] == list(range(31))
    page = log.page(sandbox, 5, 10)
    assert (page.events, page.next) == (tuple(whole[5:15]), 15)
    assert log.page(sandbox, 31) == log.page(sandbox, 1000)
    assert log.page(sandbox, 31).events == ()
    monkeypatch.setattr(reading, "PAGE_BYTES_MAX", 12_000)
    page = log.page(sandbox, 5, 10)
    assert (len(page.events), page.next) == (2, 7)
    assert list(log.events(sandbox)) == whole


def test_event_that_is_larger_than_a_page_comes_alone(story, monkeypatch):
    sandbox = story.create(1)
    story.run(sandbox, "a", stdout=b"x" * 5000)
    monkeypatch.setattr(reading, "PAGE_BYTES_MAX", 100)
    assert [len(log_of(story).page(sandbox, n).events) for n in (0, 1)] == [1, 1]


def test_log_that_is_written_to_is_read_on_from_where_reading_ended(story):
    sandbox = story.create(1)
    log = log_of(story)
    seen = []
    for number in range(300):  # several segments
        story.run(sandbox, "echo", str(number), stdout=b"x" * 20_000)
        if number % 50 == 0:
            seen.append(log.info(sandbox).events)
    assert seen == [2 + number for number in range(0, 300, 50)]
    assert log.info(sandbox).events == 301
    assert len(list(log.events(sandbox))) == 301


def test_sandboxes_in_one_log_are_told_apart(story):
    one, other = story.create(1), story.create(2)
    for number in range(5):
        story.run(one if number % 2 else other, "echo", str(number))
    told = {box: [e.request.get("argv") for e in events(story, box)] for box in (one, other)}
    assert told[one] == [None, ["echo", "1"], ["echo", "3"]]
    assert told[other] == [None, ["echo", "0"], ["echo", "2"], ["echo", "4"]]
    with pytest.raises(NotFound):
        events(story, sandbox_id(3))


def test_records_carried_over_from_deleted_segments_are_read_in_their_order(tmp_path):
    story = Story(str(tmp_path / "journal"), segment_bytes=16 << 10)
    old = story.create(1)
    for number in range(20):
        story.run(old, "old", str(number))
    log = log_of(story)
    before = list(log.events(old))
    other = 2
    while 1 in Directory(story.directory, NODE).numbers():  # until its first records were moved
        box = story.create(other)
        for number in range(20):
            story.run(box, "new", str(number))
        story.run(old, "between")
        story.end(box)
        story.ledger.forget(box)
        other += 1
    after = [e for e in events(story, old) if e.request.get("argv") != ["between"]]
    assert after == before
    assert [e.ordinal for e in log.events(old)] == list(range(len(log.outline(old))))
    assert list(log.events(old)) == events(story, old)
    story.close()


def test_chapters_of_one_sandbox_are_one_story(story, monkeypatch):
    from skerry.node import ledger

    monkeypatch.setattr(ledger, "CHAPTER_BYTES", 4000)
    sandbox = story.create(1)
    for number in range(60):
        story.run(sandbox, "echo", str(number))
    assert len(story.journal.subjects()) > 2
    argv = [e.request["argv"][1] for e in events(story, sandbox)[1:]]
    assert argv == [str(number) for number in range(60)]


def test_reader_in_a_thread_takes_a_breath_often(story):
    sandbox = story.create(1)
    for number in range(500):
        story.run(sandbox, "echo", str(number))
    breaths = []
    log = Log(Directory(story.directory, NODE), lambda: breaths.append(1))
    log.page(sandbox)
    assert len(breaths) > 50


def test_damage_in_one_record_costs_no_other_event(story):
    sandbox = story.create(1)
    story.run(sandbox, "a")
    story.journal.append(sandbox, "asked", ["no", "map"])
    story.journal.append(sandbox, "answered", {"op": 7, "result": 5, "spooled": "x"})
    story.journal.append(sandbox, "changed", None)
    story.journal.append(sandbox, "ending", {"state": 9, "reason": {"a": 1}})
    story.journal.append(sandbox, "quite-new", {"type": "quite-new", "x": b"1"})
    told = events(story, sandbox)
    assert [e.action for e in told] == ["create", "run", "run", "stop"]
