"""Jobs against a fake client: verdicts, whose fault what is, retries, records, Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_world import (
    BUG,
    CORE,
    GOOD,
    FakeClient,
    FakeSandbox,
    OpenDownloads,
    raiser,
    reported,
    task,
)

from skerry.errors import (
    Bug,
    Conflict,
    DiskFull,
    FileRefused,
    ImageBroken,
    InvalidRequest,
    LayerDamaged,
    OutcomeUnknown,
    SandboxFailed,
    SkerryError,
    StorageFailed,
    Unavailable,
)
from skerry.spec.command import RunResult
from skerry.spec.rollout import JobEvent, JobSummary, RolloutRecord
from skerry.spec.sandbox import SandboxSpec
from skerry.spec.verdict import Evidence, Outcome, Verdict
from skerry.trajectory.rollouts.reader import list_rollouts, show_rollout, verify_job
from skerry.worker.job import run_job
from skerry.worker.policies import policy_named
from skerry.worker.verdicts import record_verdict


async def job(client: FakeClient, top: Path, *policies: str, n: int = 1, **more: Any) -> JobSummary:
    return await run_job(
        client,
        [task(top)],
        [policy_named(name) for name in policies],
        downloads=OpenDownloads(top, {}),
        jobs_dir=top / "jobs",
        n=n,
        **more,
    )


async def one(client: FakeClient, top: Path, policy: str = "gold") -> RolloutRecord:
    summary = await job(client, top, policy)
    assert client.left() == []
    assert verify_job(top / "jobs", summary.job).sound
    return summary.records[0]


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


async def test_gold_earns_one_and_noop_nothing(client: FakeClient, tmp_path: Path) -> None:
    summary = await job(client, tmp_path, "gold", "noop", n=3)
    found = [(one.policy, one.reward, one.verdict) for one in summary.records]
    assert found == [("gold", 1.0, "passed")] * 3 + [("noop", 0.0, "failed")] * 3
    assert client.left() == []
    listed = list_rollouts(tmp_path / "jobs")
    assert sorted(listed, key=lambda one: one.rollout) == list(summary.records)


async def test_each_cheat_that_a_diff_shows_is_tampered(client: FakeClient, tmp_path: Path) -> None:
    summary = await job(client, tmp_path, "cheat", n=7)
    seen = {one.variant: (one.verdict, one.reward) for one in summary.records}
    assert len(seen) == 7
    seen.pop("delete_tests")  # the fake's `rm` removes nothing
    assert set(seen.values()) == {(Outcome.TAMPERED, 0.0)}
    # Nobody tests what is tampered: no second sandbox was made for it.
    roles = [sandbox.role for sandbox in client.made]
    assert roles.count("verify") == 1


async def test_each_verdict_is_in_the_record_of_the_sandbox_that_it_was_found_in(
    client: FakeClient, tmp_path: Path
) -> None:
    record = await one(client, tmp_path)
    cheat = (await job(client, tmp_path, "cheat")).records[0]
    assert (record.verdict, cheat.verdict) == (Outcome.PASSED, Outcome.TAMPERED)
    roles = {sandbox.id: sandbox.role for sandbox in client.made}
    found = [(roles[sandbox], *rest) for sandbox, *rest in client.recorded.values()]
    (passed, tampered) = found
    assert (passed[0], passed[1], passed[2]["rollout"]) == ("verify", "verdict", record.rollout)
    assert (passed[3]["outcome"], passed[3]["reward"]) == ("passed", 1.0)
    assert (tampered[0], tampered[2]["rollout"]) == ("agent", cheat.rollout)
    assert (tampered[3]["outcome"], tampered[3]["reward"]) == ("tampered", 0.0)
    assert tampered[3]["evidence"]


async def test_a_path_that_is_no_text_does_not_keep_a_verdict_from_the_record(
    client: FakeClient,
) -> None:
    sandbox = FakeSandbox(client, 0, SandboxSpec(labels={"role": "agent"}))
    evidence = (Evidence("planted_conftest", "a\udcff/conftest.py"),)
    await record_verdict(sandbox, Verdict(Outcome.TAMPERED, 0.0, evidence), {"rollout": "r"}, "op")
    await record_verdict(sandbox, Verdict(Outcome.TAMPERED, 0.0, evidence), {"rollout": "r"}, "op")
    ((_, _, _, result),) = client.recorded.values()
    assert result["evidence"][0]["path"] == "a\\udcff/conftest.py"


async def test_only_kept_files_reach_the_fresh_sandbox(client: FakeClient, tmp_path: Path) -> None:
    await job(client, tmp_path, "gold")
    agent, fresh = client.made
    assert fresh.files.content[f"/testbed/{CORE}"] == b"VALUE = 2\n"
    assert [path for path in fresh.files.content if not path.startswith("/opt/")] == [
        f"/testbed/{CORE}"
    ]
    assert set(agent.spec.layers) < set(fresh.spec.layers)
    hidden = set(fresh.spec.layers) - set(agent.spec.layers)
    assert [name.partition(":")[0] for name in hidden] == ["workspace/demo-1-tests"]


PLATFORM = [
    Unavailable("gone"),
    StorageFailed("full"),
    LayerDamaged("flipped"),
    OutcomeUnknown("lost"),
    Bug("ours"),
    ConnectionError("reset"),
    KeyError("ours too"),
]


@pytest.mark.parametrize("error", PLATFORM, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("role", "call"),
    [("agent", "run"), ("agent", "diff"), ("agent", "diff_tar"), ("verify", "info"),
     ("verify", "record"), ("verify", "run"), ("verify", "put_tree"), ("verify", "write")],
)  # fmt: skip
async def test_a_platform_fault_is_never_a_reward(
    client: FakeClient, tmp_path: Path, role: str, call: str, error: SkerryError
) -> None:
    client.on_call = raiser(error, role=role, call=call)
    record = await one(client, tmp_path)
    assert (record.verdict, record.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert len(record.attempts) == 3
    assert {attempt.stage for attempt in record.attempts} == {
        "act" if role == "agent" else "verify"
    }


@pytest.mark.parametrize("role", ["agent", "verify"])
@pytest.mark.parametrize(
    "error", [LayerDamaged("chunk 3"), ImageBroken("its manifest"), SandboxFailed("no agent")]
)
async def test_a_sandbox_that_cannot_be_made_is_never_a_reward(
    client: FakeClient, tmp_path: Path, role: str, error: SkerryError
) -> None:
    def refuse(made: str) -> None:
        if made == role:
            raise error

    client.on_create = refuse
    record = await one(client, tmp_path)
    assert (record.verdict, record.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)


async def test_a_record_says_how_the_layers_bytes_were_checked(
    client: FakeClient, tmp_path: Path
) -> None:
    record = await one(client, tmp_path)
    assert tuple(mount.digest for mount in record.mounts) == record.digests
    assert {mount.mode for mount in record.mounts} == {"trusted"}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("role", "call"), [("agent", "run"), ("verify", "run")])
async def test_a_platform_fault_that_passes_is_retried_in_fresh_sandboxes(
    client: FakeClient, tmp_path: Path, role: str, call: str, times: int
) -> None:
    client.on_call = raiser(Unavailable("gone"), role=role, call=call, times=times)
    record = await one(client, tmp_path)
    assert (record.verdict, record.reward) == (Outcome.PASSED, 1.0)
    assert [attempt.verdict for attempt in record.attempts] == ["infrastructure_error"] * times
    roles = [sandbox.role for sandbox in client.made]
    # A fault while verifying costs no work of the policy.
    assert roles.count("agent") == (1 + times if role == "agent" else 1)
    assert roles.count("verify") == (1 if role == "agent" else 1 + times)


@pytest.mark.parametrize("role", ["agent", "verify"])
@pytest.mark.parametrize(
    "error", [Unavailable("x"), SandboxFailed("x"), Conflict("x")], ids=lambda one: one.code
)
async def test_a_sandbox_that_cannot_be_made_is_the_platforms_fault(
    client: FakeClient, tmp_path: Path, role: str, error: SkerryError
) -> None:
    def refuse(asked: str) -> None:
        if asked == role:
            raise error

    client.on_create = refuse
    record = await one(client, tmp_path)
    assert (record.verdict, record.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert len(record.attempts) == 3


@pytest.mark.parametrize(
    ("role", "call"),
    [("agent", "run"), ("agent", "diff"), ("agent", "diff_tar"), ("verify", "run")],
)
async def test_a_sandbox_that_the_host_lost_is_no_fault_of_the_policy(
    client: FakeClient, tmp_path: Path, role: str, call: str
) -> None:
    error = SandboxFailed("the sandbox is failed: its instance was lost", lost="yes")
    client.on_call = raiser(error, role=role, call=call)
    record = await one(client, tmp_path)
    assert (record.verdict, record.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert len(record.attempts) == 3


@pytest.mark.parametrize(
    ("role", "call"), [("agent", "write"), ("verify", "put_tree"), ("verify", "write")]
)
async def test_a_full_disk_of_the_host_is_no_fault_of_the_policy(
    client: FakeClient, tmp_path: Path, role: str, call: str
) -> None:
    client.on_call = raiser(DiskFull("full", errno=errno.ENOSPC), role=role, call=call)
    record = await one(client, tmp_path, "cheat" if role == "agent" else "gold")
    assert (record.verdict, record.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)


@pytest.mark.parametrize(("role", "call"), [("agent", "write"), ("verify", "put_tree")])
async def test_a_full_quota_is_the_policys_own(
    client: FakeClient, tmp_path: Path, role: str, call: str
) -> None:
    client.on_call = raiser(DiskFull("full", errno=errno.EDQUOT), role=role, call=call)
    record = await one(client, tmp_path, "cheat" if role == "agent" else "gold")
    assert (record.verdict, record.reward, record.attempts) == (Outcome.FAILED, 0.0, ())


@pytest.mark.parametrize("call", ["run", "diff", "diff_tar"])
async def test_an_agent_that_destroys_its_sandbox_has_failed(
    client: FakeClient, tmp_path: Path, call: str
) -> None:
    client.on_call = raiser(SandboxFailed("it died"), role="agent", call=call)
    record = await one(client, tmp_path)
    assert (record.verdict, record.reward, record.attempts) == (Outcome.FAILED, 0.0, ())


@pytest.mark.parametrize("call", ["info", "mkdir", "write"])
async def test_a_verifying_sandbox_that_dies_before_the_tests_is_the_platforms_fault(
    client: FakeClient, tmp_path: Path, call: str
) -> None:
    client.on_call = raiser(SandboxFailed("it died"), role="verify", call=call)
    record = await one(client, tmp_path)
    assert (record.verdict, record.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)


async def test_a_submission_that_cannot_be_unpacked_has_failed(
    client: FakeClient, tmp_path: Path
) -> None:
    client.on_call = raiser(FileRefused("no room"), role="verify", call="put_tree")
    assert (await one(client, tmp_path)).verdict == "failed"


async def test_tests_that_kill_each_verifying_sandbox_have_failed(
    client: FakeClient, tmp_path: Path
) -> None:
    client.on_call = raiser(SandboxFailed("it died"), role="verify", call="test")
    record = await one(client, tmp_path)
    assert (record.verdict, record.reward) == (Outcome.FAILED, 0.0)
    assert len(record.attempts) == 3
    assert "each of 3" in record.detail


async def test_a_verifying_sandbox_that_dies_once_is_tried_again(
    client: FakeClient, tmp_path: Path
) -> None:
    client.on_call = raiser(SandboxFailed("it died"), role="verify", call="test", times=1)
    assert (await one(client, tmp_path)).reward == 1.0


ENDS: dict[str, tuple[Callable[[dict[str, Any]], RunResult], Outcome]] = {
    "no interpreter": (
        lambda order: RunResult(start_error="exec: No such file or directory"),
        Outcome.INFRASTRUCTURE_ERROR,
    ),
    "setup failed": (lambda order: reported(order, {}, step="setup"), Outcome.INFRASTRUCTURE_ERROR),
    "no report": (lambda order: RunResult(exit_code=0), Outcome.FAILED),
    "killed": (lambda order: RunResult(signal=9), Outcome.FAILED),
    "out of memory": (lambda order: RunResult(signal=9, oom_killed=True), Outcome.FAILED),
    "too long": (lambda order: RunResult(signal=9, timed_out=True), Outcome.FAILED),
    "another nonce": (lambda order: reported({"nonce": "0" * 32}, GOOD), Outcome.FAILED),
    "broke off": (lambda order: reported(order, GOOD, finished=False), Outcome.FAILED),
    "forged": (lambda order: reported(order, GOOD, forged=["a lie"]), Outcome.TAMPERED),
    "too few": (lambda order: reported(order, {BUG: "passed"}), Outcome.FAILED),
}


@pytest.mark.parametrize("name", ENDS)
async def test_each_end_of_the_verifier_has_its_verdict(
    client: FakeClient, tmp_path: Path, name: str
) -> None:
    answer, outcome = ENDS[name]
    client.report = lambda sandbox, order: answer(order)
    record = await one(client, tmp_path)
    assert record.verdict == outcome
    assert record.reward == (None if outcome is Outcome.INFRASTRUCTURE_ERROR else 0.0)


async def test_layers_other_than_the_agents_are_refused(client: FakeClient, tmp_path: Path) -> None:
    real = FakeSandbox.info

    async def other(self: FakeSandbox) -> Any:
        info = await real(self)
        return type(info)(id=info.id, state=info.state, spec=info.spec, digests=("sha256:0",))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeSandbox, "info", other)
        record = await one(client, tmp_path)
    assert record.reward is None
    assert "lacks the layer" in record.detail


async def test_a_failing_destroy_does_not_change_the_verdict(
    client: FakeClient, tmp_path: Path
) -> None:
    client.on_call = raiser(Unavailable("gone"), role="agent", call="destroy")
    assert (await one(client, tmp_path)).reward == 1.0


async def test_a_cancelled_job_leaves_no_sandbox_and_a_record_of_each_rollout(
    client: FakeClient, tmp_path: Path
) -> None:
    client.hang = True
    running = asyncio.create_task(job(client, tmp_path, "noop", n=5, concurrency=2))
    while sum(bool(sandbox.commands) for sandbox in client.made) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert client.left() == []
    records = list_rollouts(tmp_path / "jobs")
    assert len(records) == 5
    assert {(one.verdict, one.reward) for one in records} == {("infrastructure_error", None)}
    assert verify_job(tmp_path / "jobs", records[0].job).sound


async def test_a_job_cancelled_while_a_sandbox_is_made_leaves_none(
    client: FakeClient, tmp_path: Path
) -> None:
    making = asyncio.Event()
    real = client.create

    async def slow(*words: Any, **options: Any) -> FakeSandbox:
        making.set()
        await asyncio.sleep(0.01)
        return await real(*words, **options)

    client.create = slow  # type: ignore[method-assign]
    running = asyncio.create_task(job(client, tmp_path, "noop"))
    await making.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(client.made) == 1
    assert client.left() == []


async def test_at_most_so_many_rollouts_run_at_a_time(client: FakeClient, tmp_path: Path) -> None:
    peak = 0

    def watch(sandbox: FakeSandbox, what: str) -> None:
        nonlocal peak
        peak = max(peak, len(client.left()))

    client.on_call = watch
    await job(client, tmp_path, "gold", "noop", n=6, concurrency=3)
    assert 1 <= peak <= 3


async def test_events_tell_a_live_display_all_it_needs(client: FakeClient, tmp_path: Path) -> None:
    events: list[JobEvent] = []
    await job(client, tmp_path, "gold", n=2, on_event=events.append)
    kinds = [event.kind for event in events]
    assert kinds[0] == "plan"
    assert kinds[-1] == "end"
    assert kinds.count("start") == kinds.count("done") == 2
    done = [event for event in events if event.kind == "done"]
    assert [event.done for event in done] == [1, 2]
    assert all(event.record is not None and event.total == 2 for event in done)


async def test_everything_a_policy_did_is_on_record(client: FakeClient, tmp_path: Path) -> None:
    record = await one(client, tmp_path)
    trace = show_rollout(tmp_path / "jobs", record.rollout)
    assert trace.record == record
    actions = [line.data.get("action") for line in trace.lines if line.kind == "event"]
    assert actions == ["begin", "run", "submit"]
    run = trace.lines[1].data
    assert run["command"].startswith("patch -p1")
    assert run["exit_code"] == 0
    assert record.submission is not None


@pytest.mark.parametrize("n", [0, -1])
async def test_an_empty_job_is_refused(client: FakeClient, tmp_path: Path, n: int) -> None:
    with pytest.raises(InvalidRequest):
        await job(client, tmp_path, "gold", n=n)
    with pytest.raises(InvalidRequest):
        await job(client, tmp_path)


async def test_environments_are_built_once(client: FakeClient, tmp_path: Path) -> None:
    await job(client, tmp_path, "noop", n=3)
    first = len(client.images.builds)
    names = [build[0].partition(":")[0] for build in client.images.builds]
    assert names == ["base/debian", "toolkit/pytest", "workspace/demo-1", "workspace/demo-1-tests"]
    await job(client, tmp_path, "noop", n=3)
    assert len(client.images.builds) == first
