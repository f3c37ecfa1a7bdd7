"""`skerry trace` over trajectories of sandboxes: without a node, with one, and hostile ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from fake_client import FakeClient, invoke

from skerry.cli.trace import places
from skerry.errors import NotFound
from skerry.spec.sandbox import State
from skerry.spec.trajectory import Finding, FindingKind, TrajectoryCheck, TrajectoryInfo
from skerry.trajectory.format.store import BLOBS, segment_key
from skerry.trajectory.rollouts.job_log import JobLog
from trajectory_stories import NODE, Story

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m \u202etxt\r\nsound\n\x9b5n"


@pytest.fixture
def story(tmp_path):
    story = Story(str(tmp_path / "journal"))
    yield story
    story.close()


@pytest.fixture
def boxes(story, tmp_path):
    """Two sandboxes whose third operations differ, in a store."""
    made = []
    for number in range(2):
        box = story.create(number, rollout=f"r-{number}", job="train")
        story.run(box, "echo", "one", stdout=b"one\n")
        story.run(box, "pytest", stdout=EVIL.encode(), exit_code=number)
        story.fail(box, story.ask(box, "gone"), "invalid", "caller")
        story.end(box)
        made.append(box)
    content = story.blob(str(tmp_path / "store"), b"long" * 3000)
    story.journal.append(
        made[0], "did", {"action": "file.write", "request": {"path": "/a", "content": content}}
    )
    story.ship(str(tmp_path / "store"))
    return made


@pytest.fixture
def store(tmp_path, boxes) -> tuple[str, str]:
    return "--store", str(tmp_path / "store")


def rows(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_ls_lists_the_sandboxes_of_a_store(boxes, store):
    shown = invoke(None, "trace", "ls", *store)
    assert shown.exit_code == 0, shown.output
    assert boxes[0] in shown.stdout
    assert "r-1" in shown.stdout
    listed = rows(invoke(None, "trace", "ls", "--json", *store).stdout)
    assert [(row["kind"], row["sandbox"]) for row in listed] == [("trajectory", b) for b in boxes]
    assert listed[0]["state"] == "stopped"
    of_one = rows(invoke(None, "trace", "ls", "--json", "--rollout", "r-1", *store).stdout)
    assert [row["sandbox"] for row in of_one] == [boxes[1]]
    none = invoke(None, "trace", "ls", "--rollout", "none", *store)
    assert none.exit_code == 125
    assert "no trajectories" in none.stderr


@pytest.mark.parametrize("name", ["sandbox", "rollout"])
def test_show_tells_what_was_done_by_either_name(boxes, store, name):
    shown = invoke(None, "trace", "show", boxes[0] if name == "sandbox" else "r-0", *store)
    assert shown.exit_code == 0, shown.output
    assert "echo one" in shown.stdout
    assert "stdout: one" in shown.stdout
    assert "invalid (caller)" in shown.stdout
    assert "file.write" in shown.stdout
    assert "12000 bytes" in shown.stdout
    part = rows(
        invoke(None, "trace", "show", "r-0", "--json", "--from", "1", "--limit", "2", *store).stdout
    )
    assert [row["ordinal"] for row in part] == [1, 2]


def test_nothing_that_a_guest_wrote_commands_the_terminal(boxes, store):
    for command in (["show", "r-0"], ["show", "r-0", "--full"], ["diff", *boxes, "--all"]):
        shown = invoke(None, "trace", *command, *store).stdout
        assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e"} & set(shown)
        # Nor can a line of it pass for one of ours.
        assert not [line for line in shown.splitlines() if line.startswith("sound")]
    text = invoke(None, "trace", "show", "r-0", *store).stdout
    assert "\\x1b]0;owned\\x07" in text
    assert "\\x1b[31mred" in text


def test_requests_of_a_model_are_shown_with_what_was_said_and_command_no_terminal(story, tmp_path):
    box = story.create(1, rollout="r-0")
    said = {
        "request": {"ordinal": 0, "call": "responses", "model": EVIL, "messages": 3, "bytes": 90,
                    "new": [{"role": "tool", "text": f"made{EVIL}"}, 7]},
        "result": {"answered": True, "status": 200, "finish_reason": "stop",
                   "answer": {"text": "I am done" + EVIL},
                   "tool_calls": [{"name": "bash", "arguments": {"text": "ls /x"}}, None]},
        "usage": {"input_tokens": 20, "output_tokens": 3},
    }  # fmt: skip
    odd = {"request": {"new": 7}, "result": {"answered": False, "answer": 7, "tool_calls": {}}}
    for one in (said, odd):
        story.journal.append(box, "did", {"action": "model.request", "op": b"", **one})
    story.ship(str(tmp_path / "store"))
    shown = invoke(None, "trace", "show", box, "--full", "--store", str(tmp_path / "store"))
    assert shown.exit_code == 0, shown.output
    for words in ("0: responses of", "status 200, stop, 20 input tokens, 3 output tokens",
                  "tool: made", "answer: I am done", "calls: bash ls /x", "never answered"):  # fmt: skip
        assert words in shown.stdout
    assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e"} & set(shown.stdout)
    assert not [line for line in shown.stdout.splitlines() if line.startswith("sound")]
    stats = invoke(None, "trace", "stats", "--store", str(tmp_path / "store")).stdout
    assert stats.splitlines()[1].split()[9:11] == ["1", "23"]


def test_rollout_keys_that_are_hostile_are_escaped_too(story, tmp_path):
    box = story.create(1, rollout="a\x1b[31mb")
    story.ship(str(tmp_path / "store"))
    for command in (["ls"], ["show", box], ["stats"]):
        shown = invoke(None, "trace", *command, "--store", str(tmp_path / "store"))
        assert shown.exit_code == 0, shown.output
        assert "\x1b" not in shown.stdout
        assert "\\x1b[31m" in shown.stdout


def test_diff_shows_the_first_difference_and_says_so_by_its_status(boxes, store):
    shown = invoke(None, "trace", "diff", *boxes, *store)
    assert shown.exit_code == 1
    assert "first difference at operation 2 (outcome)" in shown.stdout
    assert "exit 0" in shown.stdout
    assert "exit 1" in shown.stdout
    same = invoke(None, "trace", "diff", "r-0", boxes[0], *store)
    assert (same.exit_code, "the same in all 6 operations" in same.stdout) == (0, True)
    told = rows(invoke(None, "trace", "diff", *boxes, "--json", *store).stdout)
    assert told[-1] == {"operations": 6, "differences": 2, "first_difference": 2}
    assert [row["kind"] for row in told[:-1]][-1] == "left_only"


def test_diff_names_the_fields_that_were_asked_for_otherwise(story, tmp_path):
    for number in range(2):
        box = story.create(number, rollout=f"r-{number}")
        story.run(box, "echo", str(number))
    story.ship(str(tmp_path / "store"))
    shown = invoke(None, "trace", "diff", "r-0", "r-1", "--store", str(tmp_path / "store"))
    assert "first difference at operation 1 (request: argv)" in shown.stdout


def test_a_job_names_all_its_sandboxes(boxes, store):
    for command in ("show", "verify", "stats"):
        shown = invoke(None, "trace", command, "train", "--json", *store)
        assert shown.exit_code == 0, shown.output
        assert all(box in shown.stdout or command == "stats" for box in boxes)
    assert rows(shown.stdout)
    assert invoke(None, "trace", "verify", "no job \u00e9", *store).exit_code == 125


def test_verify_of_a_store_and_of_one_sandbox_with_exit_status(boxes, store, tmp_path):
    for name in ([], [boxes[0]], ["r-0"]):
        good = invoke(None, "trace", "verify", *name, *store)
        assert good.exit_code == 0, good.output
        assert "sound" in good.stdout
    blobs = tmp_path / "store" / BLOBS
    (blob,) = blobs.iterdir()
    blob.chmod(0o600)
    blob.write_bytes(b"another one")
    bad = invoke(None, "trace", "verify", boxes[0], "--json", *store)
    assert bad.exit_code == 1
    (check,) = rows(bad.stdout)
    assert (check["sound"], check["status"]) == (False, 1)
    assert [finding["kind"] for finding in check["findings"]] == ["changed_blob"]
    assert invoke(None, "trace", "verify", "r-1", *store).exit_code == 0


def test_verify_tells_what_a_crash_tore_off_from_what_somebody_changed(story, tmp_path):
    box = story.create(1)
    story.run(box, "a")
    shelf = story.ship(str(tmp_path / "store"))
    key = segment_key(NODE, 1)
    data = shelf.get(key, 1 << 20)
    for one in ("seg", "idx"):
        os.unlink(tmp_path / "store" / key.replace("seg", one))
    shelf.put_bytes(f"trajectories/{NODE}/0000000001.tail/0000000000", data[:-5], replace=True)
    torn = invoke(None, "trace", "verify", "--store", str(tmp_path / "store"))
    assert (torn.exit_code, "incomplete" in torn.stdout) == (3, True)
    assert "torn_tail" in torn.stdout


def test_verify_of_all_looks_at_jobs_and_at_every_sandbox_of_the_node(story, tmp_path, monkeypatch):
    from skerry.cli.trace import verifying

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    nothing = invoke(None, "trace", "verify", "--all")
    assert (nothing.exit_code, "no jobs" in nothing.stderr) == (125, True)
    log = JobLog(tmp_path / "xdg" / "skerry" / "jobs" / "job1", lambda: 5.0)
    log.append("end", {})
    log.close()
    boxes = [story.create(number) for number in range(2)]
    client = FakeClient()
    client.trajectories = Trajectories(story)
    for module in (places, verifying):
        monkeypatch.setattr(module, "node_is_there", lambda _app: True)
    checks = rows(invoke(client, "trace", "verify", "--all", "--json").stdout)
    assert [check.get("job") or check["sandbox"] for check in checks] == ["job1", *boxes]
    client.trajectories.gone.append(boxes[0])  # between being listed and its turn
    shown = invoke(client, "trace", "verify", "--all")
    assert (shown.exit_code, shown.stdout.count("sound")) == (0, 2)
    client.trajectories.broken.append(boxes[1])
    assert invoke(client, "trace", "verify", "--all").exit_code == 1
    of_folder = invoke(client, "trace", "verify", "--all", "--jobs", str(log.folder.parent))
    assert (of_folder.exit_code, of_folder.stdout.count("sound")) == (0, 1)


def test_show_tells_what_a_verdict_says_and_how_an_error_ended(story, tmp_path):
    box = story.create(1, rollout="r-0")
    result = {"outcome": "failed", "reward": 0.25, "evidence": [], "detail": f"why{EVIL}"}
    story.journal.append(box, "did", {"action": "verdict", "op": b"", "result": result})
    story.run(box, "x", stderr=b"first\n" + b"between\n" * 200 + b"ValueError: last\n", exit_code=1)
    story.ship(str(tmp_path / "store"))
    shown = invoke(None, "trace", "show", box, "--store", str(tmp_path / "store")).stdout
    assert "-> outcome=failed reward=0.25 detail=why\\x1b" in shown
    assert "evidence" not in shown
    assert "ValueError: last" in shown
    assert "first" not in shown
    assert not {"\x1b", "\x07", "\r"} & set(shown)


def test_stats_sum_up_by_rollout_or_job(boxes, store):
    told = rows(invoke(None, "trace", "stats", "--json", *store).stdout)
    assert [(row["rollout"], row["commands"], row["nonzero"]) for row in told] == [
        ("r-0", 3, 0),
        ("r-1", 3, 1),
    ]
    assert told[0]["failures"] == {"caller": 1}
    (job,) = rows(invoke(None, "trace", "stats", "--by", "job", "--json", *store).stdout)
    assert (job["job"], job["sandboxes"], job["commands"]) == ("train", 2, 6)
    assert "1 caller" in invoke(None, "trace", "stats", "r-0", *store).stdout


def test_export_writes_lines_or_parquet_with_contents_beside(boxes, store, tmp_path):
    out, kept = tmp_path / "x.jsonl", tmp_path / "kept"
    arguments = ("-o", str(out), "--contents", str(kept), *store)
    done = invoke(None, "trace", "export", "--job", "train", *arguments)
    assert done.exit_code == 0, done.output
    lines = rows(out.read_text())
    assert [line["sandbox"] for line in lines] == [boxes[0]] * 6 + [boxes[1]] * 5
    (content,) = kept.iterdir()
    assert content.read_bytes() == b"long" * 3000
    assert content.name == lines[5]["request"]["content"]["blob"]
    out = tmp_path / "x.parquet"
    assert invoke(None, "trace", "export", "r-1", "-o", str(out), *store).exit_code == 0
    assert out.read_bytes()[:4] == b"PAR1"
    told = invoke(None, "trace", "export", "--all", "-o", "-", *store).stdout
    assert len(rows(told)) == 11
    for wrong in (["-o", "-"], ["r-1", "--all", "-o", "-"]):
        assert invoke(None, "trace", "export", *wrong, *store).exit_code == 125
    wrong = ["--all", "-o", "-", "--format", "parquet"]
    assert invoke(None, "trace", "export", *wrong, *store).exit_code == 125


def test_state_directory_is_read_when_no_node_runs_there(story, boxes, tmp_path):
    state = tmp_path
    (state / "name").write_text(NODE + "\n")
    given = ("--state", str(state), "--run", str(tmp_path / "run"))
    shown = invoke(None, *given, "trace", "show", boxes[0])
    assert shown.exit_code == 0, shown.output
    assert "no node runs here" in shown.stderr
    empty = invoke(None, "--state", str(tmp_path / "x"), "trace", "show", boxes[0])
    assert empty.exit_code == 125
    assert "--store" in empty.stderr


def test_place_that_is_none_is_named(tmp_path):
    for place in (str(tmp_path / "none"), "s3://"):
        shown = invoke(None, "trace", "ls", "--store", place)
        assert shown.exit_code == 125
        assert "Traceback" not in shown.stderr


class Trajectories:
    """What a node answers."""

    def __init__(self, story: Story) -> None:
        from skerry.trajectory.reading.archive import Archive
        from skerry.trajectory.reading.sources import Directory

        self.archive = Archive(Directory(story.directory, NODE), None, lambda: 0.0)
        self.asked: list[dict] = []
        self.gone: list[str] = []
        self.broken: list[str] = []

    async def iterate(self, **wanted):
        from skerry.trajectory.reading.archive import Wanted

        self.asked.append(wanted)
        for info in self.archive.select(Wanted(**wanted), 100).items:
            yield info

    async def verify(self, sandbox: str) -> TrajectoryCheck:
        from skerry.trajectory.reading.checking import check_sandbox

        if sandbox in self.gone:
            raise NotFound("it went")
        check = check_sandbox(self.archive, sandbox)
        if sandbox not in self.broken:
            return check
        finding = Finding(kind=FindingKind.TAMPERED, detail="x")
        return msgspec.structs.replace(check, findings=(finding,))

    async def events(self, sandbox: str, start: int = 0):
        for event in self.archive.page(sandbox, start).events:
            yield event


def test_rollouts_of_jobs_and_sandboxes_of_a_node_read_as_one(story, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log = JobLog(tmp_path / "skerry" / "jobs" / "job1", lambda: 5.0)
    log.append("event", {"rollout": "job1-0000", "action": "note", "text": EVIL})
    log.close()
    box = story.create(1, rollout="job1-0000", job="job1")
    story.run(box, "echo", "inside", stdout=b"inside\n")
    client = FakeClient()
    client.trajectories = Trajectories(story)
    monkeypatch.setattr(places, "node_is_there", lambda _app: True)
    monkeypatch.setattr("skerry.cli.trace.command.node_is_there", lambda _app: True)
    shown = invoke(client, "trace", "show", "job1-0000")
    assert shown.exit_code == 0, shown.output
    assert "note" in shown.stdout
    assert box in shown.stdout
    assert "echo inside" in shown.stdout
    assert "\x1b" not in shown.stdout
    listed = invoke(client, "trace", "ls")
    assert listed.exit_code == 0, listed.output
    assert box in listed.stdout
    assert client.trajectories.asked[0] == {"sandbox": None, "rollout": "job1-0000", "job": None}


def test_states_are_told_in_words(boxes):
    info = TrajectoryInfo(sandbox=boxes[0], state=str(State.STOPPED), events=1)
    assert info.state == "stopped"


def test_help_names_every_part(tmp_path: Path):
    text = invoke(None, "trace", "--help").stdout
    for name in ("ls", "show", "diff", "export", "verify", "stats"):
        assert f"  {name} " in text
