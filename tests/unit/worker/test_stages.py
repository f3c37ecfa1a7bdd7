"""Stages of a task: what each sandbox is made with, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from job_world import FakeClient, OpenDownloads, task

from skerry.errors import InvalidRequest
from skerry.spec.sandbox import SandboxSpec
from skerry.spec.stages import AgentStage, Setup, Stages, VerifyStage
from skerry.spec.task import TaskSpec
from skerry.spec.verdict import Outcome
from skerry.worker.job import run_job
from skerry.worker.policies import policy_named


def staged(top: Path, **stages: Any) -> TaskSpec:
    return msgspec.structs.replace(task(top), stages=Stages(**stages)).check()


async def test_each_stage_has_what_is_its_own_and_nothing_of_the_others(tmp_path: Path) -> None:
    client = FakeClient()
    client.user = "agent"
    for name in ("toolkit/setup:1", "toolkit/agent:1", "toolkit/judge:1"):
        client.images._make(name)
    spec = staged(
        tmp_path,
        setup=Setup(
            ("useradd agent", "chown -R agent ."), ("pypi",), ("toolkit/setup:1",), timeout_s=9.0
        ),
        agent=AgentStage(
            "agent", ("example.org",), ("toolkit/agent:1",), ("tests", "/etc/keep"), ("/opt/x",)
        ),
        verify=VerifyStage(("toolkit/judge:1",), ("src",), ("/opt/y",)),
    )
    summary = await run_job(
        client,  # type: ignore[arg-type]
        [spec],
        [policy_named("gold")],
        downloads=OpenDownloads(tmp_path, {}),
        jobs_dir=tmp_path / "jobs",
    )
    assert summary.records[0].verdict is Outcome.PASSED
    agent, verifier = client.asked
    assert agent["network"] == ("example.org",)
    assert agent["readonly"] == ("/testbed/tests", "/etc/keep")
    assert agent["hidden"] == ("/opt/x",)
    assert "network" not in verifier
    assert (verifier["readonly"], verifier["hidden"]) == (("/testbed/src",), ("/opt/y",))

    def kinds(layers: tuple[str, ...]) -> list[str]:
        return [name.partition(":")[0] for name in layers]

    shared = ["workspace/demo-1", "workspace/demo-1-setup", "toolkit/pytest"]
    assert kinds(agent["layers"]) == [*shared, "toolkit/agent"]
    # The hidden tests lie above what setup left: it cannot bring old ones back.
    assert kinds(verifier["layers"]) == [
        *shared[:2], "workspace/demo-1-tests", "toolkit/pytest", "toolkit/judge",
    ]  # fmt: skip
    built = [options for options in client.images.options if options]
    assert built == [{"workdir": "/testbed", "network": ("pypi",), "timeout": 9.0}]
    setup = next(build for build in client.images.builds if "-setup:" in build[0])
    assert "toolkit/setup" in kinds(setup[2])
    assert setup[3] == spec.stages.setup.commands


async def test_setup_is_made_once_and_anew_when_it_changes(tmp_path: Path) -> None:
    client = FakeClient()
    for commands in (("true",), ("true",), ("false",)):
        await run_job(
            client,  # type: ignore[arg-type]
            [staged(tmp_path, setup=Setup(commands))],
            [policy_named("noop")],
            downloads=OpenDownloads(tmp_path, {}),
            jobs_dir=tmp_path / "jobs",
        )
    assert len([build for build in client.images.builds if "-setup:" in build[0]]) == 2


@pytest.mark.parametrize(
    "stages",
    [
        {"setup": Setup(("",))},
        {"setup": Setup(("x",) * 101)},
        {"setup": Setup((), ("pypi",))},
        {"setup": Setup(("x",), ("10.0.0.1",))},
        {"setup": Setup(("x",), timeout_s=-1.0)},
        {"agent": AgentStage("a b")},
        {"agent": AgentStage(network=("10.0.0.0/8",))},
        {"agent": AgentStage(layers=("no kind",))},
        {"agent": AgentStage(readonly=("../x",))},
        {"verify": VerifyStage(hidden=("",))},
        {"verify": VerifyStage(readonly=("/proc/sys",))},
        {"verify": VerifyStage(readonly=("x",) * 2)},
    ],
)
def test_a_stage_out_of_bounds_is_refused(tmp_path: Path, stages: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        staged(tmp_path, **stages)


@pytest.mark.parametrize(
    "covers",
    [
        {"readonly": ("relative",)},
        {"readonly": ("/",)},
        {"readonly": ("/a/../b",)},
        {"readonly": ("/a//b",)},
        {"hidden": ("/a\x00b",)},
        {"hidden": ("/" + "x" * 1001,)},
        {"hidden": ("/dev/null",)},
        {"hidden": ("/sys",)},
        {"hidden": ("/run/x",)},
        {"hidden": ("/a", "/a/b")},
        {"hidden": ("/a",), "readonly": ("/a/b",)},
        {"hidden": ("/a",), "readonly": ("/a",)},
        {"readonly": tuple(f"/{number}" for number in range(17))},
        {"readonly": tuple(f"/{number}{'x' * 900}" for number in range(5))},
    ],
)
def test_paths_that_cannot_be_covered_are_refused(covers: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        SandboxSpec(**covers).check()
    SandboxSpec(readonly=("/a", "/a/b"), hidden=("/a/c", "/b")).check()
