"""What is collected of a sandbox beside its files: notes about deeds and about code."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from job_world import CORE, FakeClient, FakeSandbox, OpenDownloads, raiser, task

from skerry.errors import SandboxFailed
from skerry.integrity.conduct import Deed
from skerry.spec.integrity import TaskIntegrity, TaskRule
from skerry.spec.verdict import Outcome
from skerry.trajectory.rollouts.job_log import JobLog
from skerry.worker.environment import Builder, Environment
from skerry.worker.memory import Memory
from skerry.worker.session import Session
from skerry.worker.verify import Guards, Submission, collect

RULE = TaskRule(name="no_looking", reason="looks at answers", commands=("/srv/answers",))


async def collected(
    top: Path, deeds: list[Deed], content: bytes = b"VALUE = 2\n", client: FakeClient | None = None
) -> Submission:
    client = client or FakeClient()
    spec = msgspec.structs.replace(task(top), integrity=TaskIntegrity(rules=(RULE,)))
    made: tuple[Environment, ...] = await Builder(
        client.images, OpenDownloads(top, {}), lambda text: None
    ).build([spec])
    environment = made[0]
    sandbox: FakeSandbox = await client.create(
        image=environment.image, layers=environment.layers, labels={"role": "agent"}, user="root"
    )
    sandbox.files.content[f"/testbed/{CORE}"] = content
    return await collect(sandbox, environment, Guards(), deeds)


async def test_deeds_are_noted_beside_what_is_graded(tmp_path: Path) -> None:
    submission = await collected(tmp_path, [Deed(text="ls"), Deed(text="cat /proc/1/mem")])
    assert submission.verdict is None
    assert submission.tar
    assert [(one.kind, one.path) for one in submission.audit.noted] == [
        ("agent_probe", "command 2")
    ]
    assert submission.audit.notes()[0].startswith("agent_probe: command 2: it reaches")


async def test_a_deed_that_the_task_forbids_is_evidence(tmp_path: Path) -> None:
    submission = await collected(tmp_path, [Deed(text="cat /srv/answers/1")])
    assert submission.verdict is not None
    assert submission.verdict.outcome is Outcome.TAMPERED
    assert [one.kind for one in submission.verdict.evidence] == ["no_looking"]
    assert submission.tar == b""


@pytest.mark.parametrize(
    ("text", "outcome"),
    [("rm -rf /", Outcome.FAILED), ("cat /srv/answers/1", Outcome.TAMPERED)],
)
async def test_a_broken_sandbox_hides_no_deed(tmp_path: Path, text: str, outcome: Outcome) -> None:
    client = FakeClient()
    client.on_call = raiser(SandboxFailed("gone"), role="agent", call="diff")
    submission = await collected(tmp_path, [Deed(text=text)], client=client)
    assert submission.verdict is not None
    assert submission.verdict.outcome is outcome
    names = {one.kind for one in (*submission.audit.noted, *submission.audit.evidence)}
    assert names & {"deletes_system", "no_looking"}


async def test_code_of_the_submission_is_noted(tmp_path: Path) -> None:
    code = b"class A:\n    def __eq__(self, other): return True\n"
    submission = await collected(tmp_path, [], code)
    assert [(one.kind, one.path) for one in submission.audit.noted] == [
        ("equality", f"/testbed/{CORE}")
    ]


async def test_what_the_trainer_puts_there_is_no_deed_of_the_agent(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "log", lambda: 0.0)
    client = FakeClient()
    sandbox = await client.create(image="i", layers=(), labels={"role": "agent"}, user="root")
    environment: Environment = None  # type: ignore[assignment]  # not asked for anything
    session = Session(sandbox, environment, log, "r", lambda text: None, memory=Memory())
    await session.write("/opt/agent.py", b"setsid x &", deed=False)
    assert session.deeds == []
    await session.write("/opt/own.py", b"setsid x &")
    assert [deed.text for deed in session.deeds] == ["/opt/own.py\nsetsid x &"]
    log.close()
