"""What code under test can see, keep and write while it is verified, tried from inside.

Each try has its control: the same code where the policy acted, or the same channel used by its owner.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skerry.spec.grading import ScoreProgram, SubmissionRules
from skerry.spec.rollout import RolloutRecord
from skerry.spec.task import TaskSpec
from skerry.spec.verdict import Limit, Outcome
from skerry.worker import Downloads, check_task, load_tasks, run_job
from skerry.worker.session import Needs, Session
from skerry.worker.verify import Guards

pytestmark = pytest.mark.root

EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
SOURCE = "/testbed/jsonpatch.py"


def downloads() -> Downloads:
    return Downloads(Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry")), os.environ)


def small(**tests: Any) -> TaskSpec:
    spec = load_tasks([EXAMPLES / "jsonpatch-1.32"])[0]
    return msgspec.structs.replace(spec, tests=msgspec.structs.replace(spec.tests, **tests)).check()


class Fix:
    """Applies the real fix, then adds to the source file; runs a line of shell before."""

    name = "fix"
    needs = Needs()

    def __init__(self, *, source: str = "", shell: str = "") -> None:
        self.source = source
        self.shell = shell
        self.said = ""

    def variant(self, task_index: int, rollout_index: int) -> str:
        return ""

    async def act(self, session: Session, variant: str) -> None:
        patched = await session.run(["patch", "-p1"], stdin=session.environment.patch)
        assert patched.ok, patched.error_text
        content = await session.read(SOURCE)
        await session.write(SOURCE, content + self.source.encode())
        if self.shell:
            result = await session.run(self.shell, timeout=60)
            self.said = result.text + result.error_text


async def rollout(
    client: Any, top: Path, policy: Fix, task: TaskSpec, guards: Guards | None = None
) -> RolloutRecord:
    summary = await run_job(
        client, [task], [policy], downloads=downloads(), jobs_dir=top / "jobs", guards=guards
    )
    return summary.records[0]


SCORE = """
import json, os, sys
known = json.load(sys.stdin)
passed = sum(outcome == "passed" for outcome in known["outcomes"].values())
others = [one for one in os.listdir("/proc") if one.isdigit()]
mine = os.stat(__file__)
assert (mine.st_uid, mine.st_mode & 0o777) == (os.getuid(), 0o400), mine
try:
    os.close(os.open(known["workdir"] + "/planted", os.O_WRONLY | os.O_CREAT))
    raise SystemExit("could write to the workdir")
except PermissionError:
    pass
for one in others:
    try:
        command = open("/proc/" + one + "/cmdline").read().split("\\0")
    except OSError:
        continue
    # The guest agent's uid is none in here and shows as nobody's too.
    if os.stat("/proc/" + one).st_uid == 65534 and command[0] != "skerry-init":
        raise SystemExit(f"a process of the tests is left: {command}")
score = 0.5 if passed == 108 else 0.125
os.write(int(os.environ["SKERRY_SCORE_FD"]), repr(score).encode() + b"\\n")
"""
# Everything that could be a channel: open descriptors, those of others, files of likely names; and a
# process that goes on by itself.
FORGE = """
import os as _os, sys as _sys, glob as _glob, signal as _signal
def _forge(text):
    done = []
    targets = [int(one) for one in _os.listdir("/proc/self/fd") if int(one) not in (0, 1, 2, 230)]
    for fd in targets:
        try:
            _os.write(fd, text)
        except OSError:
            pass
    for path in _glob.glob("/proc/[0-9]*/fd/[0-9]*"):
        try:
            if _os.readlink(path).startswith("pipe:") and not path.startswith(f"/proc/{_os.getpid()}/"):
                fd = _os.open(path, _os.O_WRONLY | _os.O_NONBLOCK)
                _os.write(fd, text)
                done.append(path)
        except OSError:
            pass
    for path in ("/opt/skerry-hidden/score.py", "/opt/skerry-verify/verifier.py",
                 "/testbed/score", "/logs/score", "/opt/skerry-hidden/score"):
        try:
            with open(path, "w") as file:
                file.write("1.0")
            done.append(path)
        except OSError:
            pass
    return done
if _os.getuid() and not _os.environ.get("_FORGING"):
    _os.environ["_FORGING"] = "1"
    assert not _forge(b"1.0\\n")
    if not _os.fork():
        _os.setsid()
        if _os.fork():
            _os._exit(0)
        for _number in range(1, 65):
            if _number not in (9, 19):
                _signal.signal(_number, _signal.SIG_IGN) if _number not in (32, 33) else None
        _os.closerange(0, 400)
        while True:
            _forge(b"1.0\\n")
    _os.wait()
"""


async def test_a_score_comes_from_the_verifiers_channel_only(
    node_client: Any, tmp_path: Path
) -> None:
    task = small(score=ScoreProgram(program=SCORE))
    record = await rollout(node_client, tmp_path, Fix(), task)
    assert (record.verdict, record.reward, record.score) == (Outcome.PASSED, 0.5, 0.5), (
        record.detail
    )
    forging = Fix(source=FORGE)
    record = await rollout(node_client, tmp_path, forging, task)
    assert (record.verdict, record.reward, record.score) == (Outcome.PASSED, 0.5, 0.5), (
        record.detail
    )
    # The control: with the sweep switched off its daemon is there while the score is given.
    record = await rollout(node_client, tmp_path, forging, task, Guards(sweep=False))
    assert record.reward is None
    assert "a process of the tests is left" in record.detail


@pytest.mark.parametrize("text", ["1e999", "1.0\\n1.0", "nan"])
async def test_a_score_that_is_none_is_no_reward(
    node_client: Any, tmp_path: Path, text: str
) -> None:
    wrong = f"import os; os.write(int(os.environ['SKERRY_SCORE_FD']), b'{text}')"
    task = small(score=ScoreProgram(program=wrong))
    record = await rollout(node_client, tmp_path, Fix(), task)
    assert (record.verdict, record.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert "tests.score" in record.detail


LOOK = """
import os as _os, json as _json
def _can(path, flags):
    try:
        _os.close(_os.open(path, flags))
        return True
    except OSError:
        return False
if "SEEN" not in _os.environ and _os.getuid():
    _processes = []
    for _one in _os.listdir("/proc"):
        if _one.isdigit():
            try:
                _processes.append(open(f"/proc/{_one}/cmdline").read().replace("\\0", " ").strip())
            except OSError:
                _processes.append("?")
    _parent = _os.getppid()
    _text = "LOOK" + _json.dumps({
        "uid": _os.getuid(), "groups": _os.getgroups(), "environment": sorted(_os.environ),
        "processes": sorted(_processes),
        "left": _os.path.exists("/tmp/left") or _os.path.exists("/dev/shm/left"),
        "read": [path for path in (
            "/opt/skerry-hidden/score.py", f"/proc/{_parent}/mem", f"/proc/{_parent}/environ",
            f"/proc/{_parent}/fd/0",
        ) if _can(path, _os.O_RDONLY)],
        "write": [path for path in (
            "/testbed/tests.py", "/testbed/jsonpatch.py", "/opt/skerry-verify/verifier.py",
            "/opt/skerry-verify/collect.py", "/opt/skerry-hidden/score.py", "/etc/passwd",
        ) if _can(path, _os.O_WRONLY)],
    }) + "END"
    for _fd in _os.listdir("/proc/self/fd"):  # pytest has put standard output aside
        try:
            if _fd != "230" and _os.readlink(f"/proc/self/fd/{_fd}").startswith("pipe:"):
                _os.write(int(_fd), _text.encode())
        except OSError:
            pass
    _os._exit(77)
"""
LEAVE = (
    "touch /tmp/left /dev/shm/left; (setsid sleep 7777 </dev/null >/dev/null 2>&1 &); "
    "su -s /bin/sh nobody -c 'cat /tmp/left && echo found'; pgrep -af 'sleep 7777'"
)


async def test_the_tests_see_nothing_of_the_agent_and_nothing_of_the_verifiers(
    node_client: Any, tmp_path: Path
) -> None:
    policy = Fix(source=LOOK, shell=LEAVE)
    task = small(score=ScoreProgram(program=SCORE), env={"OWN": "1"})
    record = await rollout(node_client, tmp_path, policy, task)
    assert "found" in policy.said, "where the agent acted it is there"
    assert "sleep 7777" in policy.said
    assert record.verdict is Outcome.FAILED
    assert "LOOK" in record.detail, record.detail
    seen = json.loads(record.detail.split("LOOK")[1].split("END")[0])
    assert (seen["uid"], seen["groups"], seen["left"]) == (65534, [], False)
    assert set(seen["environment"]) <= {
        "PATH", "HOME", "LANG", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_VERSION", "PYTEST_CURRENT_TEST", "OWN", "LC_CTYPE",
    }  # fmt: skip
    assert not [one for one in seen["processes"] if "sleep" in one]
    assert (seen["read"], seen["write"]) == ([], [])


TWICE = """
import os as _os
if _os.path.exists("/tmp/ran"):
    raise RuntimeError("the second time in one sandbox")
if not _os.environ.get("_ONCE"):
    _os.environ["_ONCE"] = "1"
    open("/tmp/ran", "x").close()
"""


async def test_each_repeat_begins_afresh(node_client: Any, tmp_path: Path) -> None:
    policy = Fix(source=TWICE, shell="python3 -c 'import jsonpatch'; python3 -c 'import jsonpatch'")
    record = await rollout(node_client, tmp_path, policy, small(repeats=3))
    assert "the second time in one sandbox" in policy.said
    assert (record.verdict, record.reward) == (Outcome.PASSED, 1.0), record.detail
    assert record.repeats is not None
    assert (record.repeats.passed, record.repeats.unstable) == (3, {})


COIN = """
import os as _os
if _os.getuid() and _os.urandom(1)[0] < 128:
    make_patch = None
"""


async def test_a_flaky_submission_is_told_from_a_sound_one(
    node_client: Any, tmp_path: Path
) -> None:
    record = await rollout(node_client, tmp_path, Fix(source=COIN), small(repeats=8))
    assert record.verdict is Outcome.FAILED, "one in 256 times it is not"
    assert record.repeats is not None
    assert len(record.repeats.runs) == 8
    named = small().tests.fail_to_pass[0]
    assert named in record.repeats.unstable or named in record.repeats.never


async def test_checking_a_sound_task_with_repeats_finds_no_flaky_test(
    node_client: Any, tmp_path: Path
) -> None:
    check = await check_task(
        node_client, small(), downloads=downloads(), jobs_dir=tmp_path, repeats=2
    )
    assert check.sound, check.problems


async def test_limits_of_the_tests_end_them_and_are_no_fault_of_the_platform(
    node_client: Any, tmp_path: Path
) -> None:
    hog = "\nimport os as _os\nif _os.getuid():\n    _hog = bytearray(1)*(400 << 20)\n"
    record = await rollout(node_client, tmp_path, Fix(source=hog), small(memory="96MiB"))
    assert (record.verdict, record.limit, record.attempts) == (Outcome.FAILED, Limit.MEMORY, ())
    # With what the task has otherwise, the same passes.
    record = await rollout(node_client, tmp_path, Fix(source=hog), small(memory="700MiB"))
    assert (record.verdict, record.limit) == (Outcome.PASSED, None), record.detail
    slow = "\nimport os as _os, time as _time\nif _os.getuid():\n    _time.sleep(600)\n"
    record = await rollout(node_client, tmp_path, Fix(source=slow), small(timeout_s=5.0))
    assert (record.verdict, record.limit, record.attempts) == (Outcome.FAILED, Limit.TIME, ())


async def test_only_declared_artifacts_reach_the_verifier(node_client: Any, tmp_path: Path) -> None:
    task = msgspec.structs.replace(
        small(), submission=SubmissionRules(("jsonpatch.py", "out"))
    ).check()
    need = (
        "\nimport os as _os\nif _os.getuid():\n    _names = ('out/a', 'out/l', 'extra.py')\n"
        "    assert [_os.path.exists('/testbed/' + one) for one in _names] == {}\n"
    )
    shell = "mkdir out; echo 1 > out/a; ln -s ../extra.py out/l; echo 2 > extra.py"
    fix = Fix(source=need.format([True, False, False]), shell=shell)
    record = await rollout(node_client, tmp_path, fix, task)
    assert (record.verdict, record.reward) == (Outcome.PASSED, 1.0), record.detail
    assert any(note.startswith("undeclared: ") for note in record.notes)
    # Without a declaration the whole diff is graded, the extra file too.
    fix = Fix(source=need.format([True, True, True]), shell=shell)
    record = await rollout(node_client, tmp_path, fix, small())
    assert (record.verdict, record.reward) == (Outcome.PASSED, 1.0), record.detail


class Turns:
    """A client that tells each verifying sandbox, in a file of root's, the how manieth it is."""

    def __init__(self, client: Any) -> None:
        self._client, self._made = client, 0

    @property
    def sandboxes(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def get(self, sandbox_id: str) -> Any:
        return await self._client.sandboxes.get(sandbox_id)

    async def list(self, **which: Any) -> Any:
        return await self._client.sandboxes.list(**which)

    async def create(self, backend: str = "container", **options: Any) -> Any:
        sandbox = await self._client.sandboxes.create(backend, **options)
        if options["labels"]["role"] == "verify":
            self._made += 1
            await sandbox.files.write("/turn", str(self._made), mode=0o644)
        return sandbox


FLAKY = """
if open("/turn").read() in ("2", "4"):
    make_patch = None
"""


@pytest.mark.parametrize(("passes", "verdict"), [(0, Outcome.FAILED), (3, Outcome.PASSED)])
async def test_submission_that_passes_on_some_repeats_is_told_as_flaky(
    node_client, tmp_path: Path, passes: int, verdict: Outcome
) -> None:
    task = small(repeats=5, **({"passes": passes} if passes else {}))
    record = await rollout(Turns(node_client), tmp_path, Fix(source=FLAKY), task)
    assert (record.verdict, record.reward) == (verdict, float(verdict is Outcome.PASSED)), record
    found = record.repeats
    assert found is not None
    honest, broken = Outcome.PASSED, Outcome.FAILED
    assert [run.outcome for run in found.runs] == [honest, broken, honest, broken, honest]
    assert (found.passed, found.needed) == (3, passes or 5)
    assert found.unstable
    assert set(found.unstable.values()) == {3}  # each of them passed in three of the five
    assert found.never == ()
    assert await node_client.sandboxes.list() == []
