"""What is on record of a rollout, and what is asked: which answer there is, without a node."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.errors import ContentDropped, Diverged, InvalidRequest, NotFound, OutcomeUnknown
from skerry.sdk.options import spec_of
from skerry.sdk.repeat import answers, names
from skerry.sdk.repeat.calls import Step, split, step_of
from skerry.sdk.repeat.choices import check_divergence, check_unknown
from skerry.sdk.repeat.line import Line
from skerry.sdk.repeat.past import Past
from skerry.sdk.repeat.story import Story
from skerry.spec.command import CommandSpec, RunResult
from skerry.spec.sandbox import SandboxInfo, State
from skerry.spec.trajectory import (
    Event,
    EventPage,
    Outcome,
    TrajectoryInfo,
    TrajectoryPage,
    content,
    request_digest,
)
from skerry.wire.files import FileOp
from skerry.wire.http import CommitBody, OpStatus

KEY = "rollout/1"
SANDBOX = "s" + "a" * 20
SPEC = spec_of("container", key=names.sandbox_key(KEY, "#0", 0), rollout=KEY)
LINE: dict[str, Any] = {"shell": "true"}


def op(ordinal: int, attempt: int = 0) -> str:
    return names.Operations(KEY, "#0").id(ordinal, 0, attempt)


def event(ordinal: int, op_id: str = "", action: str = "run", **fields: Any) -> Event:
    request = fields.pop("request", LINE)
    fields.setdefault("outcome", Outcome.DONE)
    if fields["outcome"] is Outcome.DONE:
        fields.setdefault("result", {"exit_code": 0})
    return Event(
        ordinal=ordinal,
        sandbox=SANDBOX,
        action=action,
        op=op_id,
        request=request,
        request_digest=request_digest(request),
        **fields,
    )


class Node:
    """A node with one sandbox and its record; counts the pages that it was asked for."""

    def __init__(self, *events: Event, page: int = 1000, alive: bool = True) -> None:
        created = event(0, action="create", request={"key": SPEC.key, "rollout": KEY})
        self.events = (created, *events)
        self.alive, self._page = alive, page
        self.pages = 0

    async def call(self, method: str, path: str, answer: Any, **how: Any) -> Any:
        params = dict(how.get("params") or {})
        if answer is TrajectoryPage:
            return TrajectoryPage((TrajectoryInfo(sandbox=SANDBOX),))
        if answer is EventPage:
            start = int(params["from"])
            limit = min(int(params["limit"]), self._page)
            self.pages += limit > 1
            after = start + limit
            following = after if after < len(self.events) else None
            return EventPage(self.events[start:after], following)
        if answer is SandboxInfo and self.alive:
            return SandboxInfo(id=SANDBOX, state=State.RUNNING, spec=SPEC)
        raise NotFound(f"{method} {path}")


async def line(node: Node, on_divergence: str = "stop", on_unknown: Any = "wait") -> Line:
    past = Past(
        node,  # type: ignore[arg-type]
        KEY,
        check_divergence(on_divergence),
        check_unknown(on_unknown),
        0.0,
    )
    await past.read()
    made = Line(past, "#0")
    await made.open(SPEC, 0.0)
    return made


def run(shell: str = "true") -> Step:
    step = step_of("POST", "/run", {}, CommandSpec(shell=shell))
    assert step is not None
    return step


def test_names_follow_from_the_key_the_sandbox_and_the_ordinal_alone() -> None:
    assert op(0) == op(0) != op(1)
    ids = {
        names.Operations(rollout, sandbox).id(*numbers)
        for rollout, sandbox in (("a", "bc"), ("ab", "c"))
        for numbers in ((0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0), (10, 0, 0))
    }
    assert len(ids | {names.refusal(one) for one in ids}) == 20
    assert len(op(0)) == 32
    assert names.read_marker(names.marker("rebuilt", 7)) == ("rebuilt", 7)
    for other in (None, "", "rebuilt", "rebuilt:x", ":1"):
        assert names.read_marker(other) == ("", 0)


@pytest.mark.parametrize(
    ("method", "path", "params", "body", "action", "request_"),
    [
        ("POST", "/ops?op=1", None, CommandSpec(argv=("a",)), "run", {"argv": ["a"]}),
        (
            "POST",
            "/run",
            None,
            CommandSpec(shell="x" * 5000, session="s"),
            "session.run",
            {"shell": "x" * 4096, "session": "s"},
        ),
        ("POST", "/files/op", None, FileOp(op="stat", path="/a"), "file.stat", {"path": "/a"}),
        ("GET", "/files", {"path": "/a", "offset": "0"}, None, "file.read", {"path": "/a"}),
        (
            "GET",
            "/files",
            {"path": "/\udcff", "tail": "5"},
            None,
            "file.read",
            {"path": content(b"/\xff"), "tail": 5},
        ),
        (
            "PUT",
            "/files",
            {"path": "/a", "mode": "644", "append": "1"},
            None,
            "file.write",
            {"path": "/a", "mode": 0o644, "append": True},
        ),
        (
            "POST",
            "/commits",
            None,
            CommitBody(name="workspace/a", id="1" * 32),
            "commit",
            {"name": "workspace/a:latest"},
        ),
        ("POST", "/pause", None, None, "harness.pause", {"path": "/pause"}),
        ("DELETE", "", None, None, "harness.destroy", {"path": ""}),
    ],
)
def test_request_is_the_operation_that_the_node_records(  # noqa: PLR0917
    method, path, params, body, action, request_
) -> None:
    tail, query = split(path, params)
    step = step_of(method, tail, query, body)
    assert step is not None
    assert (step.action, step.request) == (action, request_)


@pytest.mark.parametrize(
    ("method", "tail"),
    [("GET", ""), ("GET", "/usage"), ("GET", "/ops/1"), ("POST", "/ops/1/stdin"), ("GET", "/wait")],
)
def test_what_is_said_about_a_sandbox_as_it_is_now_is_no_operation(method, tail) -> None:
    assert step_of(method, tail, {}, None) is None


async def test_pages_are_read_one_ahead_and_nodes_own_events_are_passed_over() -> None:
    node = Node(*(event(n, op(n) if n % 2 else "") for n in range(1, 40)), page=10)
    past = Past(node, KEY, "stop", "wait", 0.0)  # type: ignore[arg-type]
    story = Story(past.trajectories, SANDBOX)
    found = await story.find(op(1))
    assert found is not None
    assert found.ordinal == 1
    assert await story.find(op(1)) is None  # given once; and all of the record was looked through
    assert node.pages == 4
    later = await story.find(op(39))
    assert later is not None
    await story.close()


async def test_recorded_answer_is_given_and_what_is_not_there_is_asked_for() -> None:
    made = await line(Node(event(1, op(0)), event(2, op(1), outcome=Outcome.RUNNING)))
    first = await made.turn(run(), made.take())
    assert first.event is not None
    for ordinal in (1, 2):  # under way: joined; never begun: done now
        turn = await made.turn(run(), made.take())
        assert (turn.event, turn.op) == (None, op(ordinal))


async def test_unknown_outcome_is_raised_or_done_again_under_another_id() -> None:
    lost = event(1, op(0), outcome=Outcome.UNKNOWN, error={"code": "outcome_unknown"})
    for choice in ("wait", "fail"):
        made = await line(Node(lost), on_unknown=choice)
        with pytest.raises(OutcomeUnknown) as raised:
            await made.turn(run(), made.take())
        assert raised.value.fields["ordinal"] == 0
    asked: list[Event] = []
    made = await line(Node(lost), on_unknown=lambda event: asked.append(event) or "rerun")
    assert (await made.turn(run(), made.take())).op == op(0, 1)
    assert asked == [lost]
    again = await line(Node(lost, event(2, op(0, 1))), on_unknown="rerun")
    assert (await again.turn(run(), again.take())).event == event(2, op(0, 1))


async def test_operation_under_way_is_not_waited_for_if_that_is_not_wanted() -> None:
    made = await line(Node(event(1, op(0), outcome=Outcome.RUNNING)), on_unknown="fail")
    with pytest.raises(OutcomeUnknown):
        await made.turn(run(), made.take())


async def test_look_whose_end_is_unknown_is_done_again_without_a_question() -> None:
    step = step_of("GET", "/files", {"path": "/a"}, None)
    assert step is not None
    lost = event(1, op(0), "file.read", request={"path": "/a"}, outcome=Outcome.UNKNOWN)
    made = await line(Node(lost), on_unknown="fail")
    assert (await made.turn(step, made.take())).op == op(0, 1)


async def test_another_operation_diverges_and_names_both() -> None:
    made = await line(Node(event(1, op(0))))
    with pytest.raises(Diverged, match="operation 0") as raised:
        await made.turn(run("false"), made.take())
    assert raised.value.fields["recorded"] == {"action": "run", "request": LINE}
    assert raised.value.fields["asked"] == {"action": "run", "request": {"shell": "false"}}
    made = await line(Node(event(1, op(0), action="file.mkdir")))
    with pytest.raises(Diverged):
        await made.turn(run(), made.take())


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ((), "no commit of it before this operation is on record"),
        (("commit",), "no layer of its commits before this operation is in the store"),
    ],
)
async def test_member_of_a_fork_that_cannot_be_branched_says_why_and_what_to_do(
    before: tuple[str, ...], why: str
) -> None:
    commit = step_of("POST", "/commits", {}, CommitBody(name="workspace/gone", id="1" * 32))
    assert commit is not None
    commits = [event(1 + n, op(n), one, request=commit.request) for n, one in enumerate(before)]
    asked = len(commits)
    node = Node(*commits, event(1 + asked, op(asked)))
    past = Past(node, KEY, "branch", "wait", 0.0)  # type: ignore[arg-type]
    await past.read()
    made = Line(past, "#0", key=SPEC.key, forked=True)
    await made.join(SandboxInfo(id=SANDBOX, state=State.RUNNING, spec=SPEC))
    for _ in commits:
        assert (await made.turn(commit, made.take())).event is not None
    with pytest.raises(Diverged, match=why) as raised:
        await made.turn(run("false"), made.take())
    assert raised.value.fields["asked"] == {"action": "run", "request": {"shell": "false"}}
    assert SANDBOX in raised.value.fields["no_branch"]
    assert "commit each member of a fork first" in raised.value.message


async def test_long_requests_are_cut_in_the_message_of_a_divergence() -> None:
    made = await line(Node(event(1, op(0))))
    with pytest.raises(Diverged) as raised:
        await made.turn(run("x" * 100_000), made.take())
    assert len(raised.value.message) < 5000


async def test_dropped_content_says_what_to_do() -> None:
    dropped = {"bytes": 10, "dropped": True, "sha256": "0" * 64}
    ended = event(1, op(0), result={"exit_code": 0, "stdout": dropped})
    with pytest.raises(ContentDropped, match="content_bytes_max"):
        await answers.run_result(ended, None)  # type: ignore[arg-type]


async def test_commands_answers_are_those_that_were_given() -> None:
    result = {"exit_code": 0, "stdout": content(b"\xff"), "stdout_total": 1, "op_id": op(0)}
    told = await answers.run_result(event(1, op(0), result=result), None)  # type: ignore[arg-type]
    assert told == RunResult(exit_code=0, stdout=b"\xff", stdout_total=1, op_id=op(0))
    status = await answers.status(
        event(1, op(0), result=result),
        op(0),
        None,  # type: ignore[arg-type]
    )
    assert status == OpStatus(op_id=op(0), state="done", command="true", result=told)


def test_words_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        check_divergence("go on")
    with pytest.raises(InvalidRequest):
        check_unknown("perhaps")
