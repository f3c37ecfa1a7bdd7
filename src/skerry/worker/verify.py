"""Grading: what a policy left, applied to a fresh sandbox and tested there.

Two steps, so that a platform fault in the second costs no work of the policy: `collect` takes diff
and files out of the agent's sandbox, which may go then; `grade` makes a fresh sandbox of the same
digests with the hidden tests on top, applies what the audit kept, runs our own test runner and
judges its report. Neither raises for what a policy did; both raise platform errors as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

import msgspec

from skerry.errors import (
    Bug,
    FileRefused,
    SandboxError,
    SandboxFailed,
    StorageFailed,
    Unavailable,
)
from skerry.integrity.artifacts import declared
from skerry.integrity.audit import Audit, audit
from skerry.integrity.conduct import Deed, conduct
from skerry.integrity.protected import Rules
from skerry.integrity.repeats import Ran, combine
from skerry.integrity.report import TestReport, parse_report
from skerry.integrity.sources import remarks
from skerry.integrity.tarfilter import TarFilter
from skerry.integrity.verdict import failed, infrastructure_error, judge, out_of_memory, tampered
from skerry.spec.command import RunResult
from skerry.spec.files import Change, ChangeKind, FileType
from skerry.spec.task import TaskSpec
from skerry.spec.verdict import Outcome, Verdict
from skerry.worker.environment import SCORE_PROGRAM, SCORE_UID, Environment
from skerry.worker.inside import program
from skerry.worker.lives import is_host_full, is_lost, sandbox_of
from skerry.worker.memory import Submission
from skerry.worker.ports import Client, Sandbox
from skerry.worker.verdicts import record_verdict

SUBMISSION_BYTES_MAX = 64 << 20
SUBMISSION_FILES_MAX = 20_000
PROGRAMS = "/opt/skerry-verify"
RUNNER_MARGIN_S = 30.0
REPORT_BYTES_MAX = 32 << 20
CHUNK = 256 * 1024

Auditor = Callable[[Iterable[Change], Rules], Audit]


class Guards(msgspec.Struct, frozen=True):
    """The defences of grading. Only tests switch one off, to show that it is what stops a cheat."""

    auditor: Auditor = audit
    sentinels: bool = True
    fingerprint: bool = True
    sweep: bool = True  # ends what the tests left running, before a score is given


async def collect(
    sandbox: Sandbox, environment: Environment, guards: Guards, deeds: Sequence[Deed] = ()
) -> Submission:
    """Returns what a policy left in its sandbox, and what it did as far as that is to be told.

    A sandbox that it broke gives a failed verdict.
    """
    # Off the loop: there may be tens of thousands of paths, and long commands.
    done = await asyncio.to_thread(conduct, deeds, environment.rules.extra)
    workdir = environment.task.workdir
    try:
        found = await asyncio.to_thread(guards.auditor, await sandbox.diff(), environment.rules)
        found = msgspec.structs.replace(
            found,
            evidence=(*found.evidence, *done.evidence),
            noted=(*found.noted, *done.noted),
        )
        early = tampered(found)
        if early is not None:
            return Submission(found, b"", early)
        found = declared(found, environment.task)
        if len(found.kept) > SUBMISSION_FILES_MAX:
            return Submission(found, b"", failed("the submission has too many files to be graded"))
        if not found.kept:
            return Submission(found, b"")
        contents = {change.digest or change.path: change.size for change in found.kept}
        if sum(contents.values()) > SUBMISSION_BYTES_MAX:  # holes count, and are not sent for that
            why = "the submission is too large to be graded"
            return Submission(found, b"", failed(why))
        sieve = TarFilter(found.kept, workdir, bytes_max=SUBMISSION_BYTES_MAX)
        out = bytearray()
        async for chunk in sandbox.diff_tar(workdir):
            out += sieve.feed(chunk)
        out += sieve.finish()
    except SandboxError as error:
        if is_lost(error):
            raise
        why = f"the sandbox cannot be graded: {error.message}"
        left = Audit((), (), (), done.evidence, done.noted)
        return Submission(left, b"", tampered(left) or failed(why), repercussion=why)
    if sieve.missing:
        return Submission(found, b"", failed(f"{sieve.missing[0]} vanished while it was graded"))
    tar = bytes(out)
    said = await asyncio.to_thread(remarks, tar, environment.remarked, workdir)
    found = msgspec.structs.replace(found, noted=(*found.noted, *said))
    return Submission(found, tar)


async def grade(
    client: Client,
    environment: Environment,
    submission: Submission,
    *,
    guards: Guards,
    labels: dict[str, str],
) -> Verdict:
    """Returns the verdict of as many verifications as the task says, each in a fresh sandbox.

    Raises platform errors, and SandboxFailed if a sandbox died while the tests ran: the caller tries
    again, and only what happens every time is the submission's own doing.
    """
    if submission.verdict is not None:
        return submission.verdict
    ran: list[Ran] = []
    used: set[str] = set()
    for _ in range(environment.task.tests.repeats):
        ran.append(await _verify(client, environment, submission, guards, labels=labels, used=used))
        if ran[-1].verdict.outcome in (Outcome.TAMPERED, Outcome.INFRASTRUCTURE_ERROR):
            break
    return combine(environment.task, ran)


async def _verify(
    client: Client,
    environment: Environment,
    submission: Submission,
    guards: Guards,
    *,
    labels: dict[str, str],
    used: set[str],
) -> Ran:
    """Runs one verification; `used` are the sandboxes of others, and gets this one's."""
    task = environment.task
    began = time.monotonic()
    memory = task.tests.memory or task.limits.memory
    limits = msgspec.structs.replace(task.limits, memory=memory)
    async with contextlib.AsyncExitStack() as stack:
        try:
            sandbox = await stack.enter_async_context(
                sandbox_of(
                    client,
                    msgspec.structs.replace(task, limits=limits),
                    image=environment.image,
                    layers=environment.verify_layers,
                    seconds=_seconds(task) + RUNNER_MARGIN_S,
                    labels=labels,
                    **environment.verifying(),
                )
            )
            if sandbox.id in used:
                raise Unavailable("the verifying sandbox is one that was used before")
            used.add(sandbox.id)
            await _check_digests(sandbox, environment)
            problem = await _apply(sandbox, environment, submission)
        except SandboxError as error:
            # Nothing of the submission has run yet.
            raise Unavailable(f"the verifying sandbox: {error.message}") from error
        ran = Ran(failed(problem)) if problem else await _judged(sandbox, environment, guards)
        await record_verdict(sandbox, ran.verdict, labels)
    return msgspec.structs.replace(ran, seconds=time.monotonic() - began)


async def _judged(sandbox: Sandbox, environment: Environment, guards: Guards) -> Ran:
    """Runs the tests on what was applied, and says what came of it."""
    task = environment.task
    report, lost = await _run_tests(sandbox, environment, guards)
    if report is not None:
        return Ran(judge(task, report), report.outcomes)
    if isinstance(lost, Verdict):
        return Ran(lost)
    return Ran(judge(task, None, lost))


def _seconds(task: TaskSpec) -> float:
    """Returns how long the runner may take."""
    score = task.tests.score
    return task.tests.timeout_s + (score.timeout_s if score else 0.0) + RUNNER_MARGIN_S


async def _check_digests(sandbox: Sandbox, environment: Environment) -> None:
    seen = set((await sandbox.info()).digests)
    missing = [digest for digest in environment.digests if digest not in seen]
    if missing:
        raise Bug(f"the verifying sandbox lacks the layer {missing[0]} that the agent had")


async def _apply(sandbox: Sandbox, environment: Environment, submission: Submission) -> str:
    """Makes the fresh workdir what was submitted; returns why it cannot be, or an empty text."""
    task = environment.task
    await sandbox.files.mkdir(PROGRAMS, mode=0o755, parents=True)
    for name in ("verifier", "collect"):
        await sandbox.files.write(f"{PROGRAMS}/{name}.py", program(name), mode=0o444)
    kept = submission.audit.kept
    # A file takes another one's place by itself; where the kind changes, room is made first.
    replaced = [
        change.path
        for change in kept
        if change.kind is ChangeKind.MODIFIED
        and change.type is not FileType.DIRECTORY
        and change.path not in environment.files
    ]
    order = {
        "mode": "clear",
        "workdir": task.workdir,
        "remove": [*submission.audit.deleted, *replaced],
        "directories": [
            change.path
            for change in kept
            if change.type is FileType.DIRECTORY and change.path in environment.files
        ],
    }
    if order["remove"] or order["directories"]:
        result = await _runner(sandbox, task.tests.interpreter, order, RUNNER_MARGIN_S)
        if not result.ok:
            return f"the submission cannot be applied: {result.error_text[-500:]}"
    if submission.tar:
        try:
            await sandbox.files.put_tree(task.workdir, _chunks(submission.tar))
        except FileRefused as error:
            if is_host_full(error):
                raise StorageFailed(f"the host's disk: {error.message}") from error
            return f"the submission cannot be applied: {error.message}"
    return ""


async def _run_tests(
    sandbox: Sandbox, environment: Environment, guards: Guards
) -> tuple[TestReport | None, Verdict | str]:
    """Returns the runner's report, or what there is to say without one."""
    task = environment.task
    nonce = secrets.token_hex(16)
    score = task.tests.score
    order = {
        "mode": "verify",
        "nonce": nonce,
        "workdir": task.workdir,
        "args": task.tests.pytest_args,
        "env": task.tests.env,
        "import_roots": task.tests.import_roots,
        "plugins": task.tests.plugins,
        "fail_to_pass": task.tests.fail_to_pass,
        "test_paths": task.test_paths,
        "timeout_s": task.tests.timeout_s,
        "user": task.tests.user,
        "score": {"program": SCORE_PROGRAM, "timeout_s": score.timeout_s} if score else None,
        "score_uid": SCORE_UID,
        "sentinels": guards.sentinels,
        "guard": guards.fingerprint,
        "sweep": guards.sweep,
    }
    result = await _runner(sandbox, task.tests.interpreter, order, _seconds(task))
    report = parse_report(result.stdout, nonce)
    if report is not None:
        return msgspec.structs.replace(report, oom_killed=result.oom_killed), ""
    if result.start_error:
        return None, infrastructure_error(f"the runner could not start: {result.start_error}")
    if result.oom_killed:
        return None, out_of_memory(task)
    if result.timed_out:
        # Its own clock ends the tests well before: the machine stood still, or was made to.
        raise SandboxFailed("the runner did not end in time")
    how = f"signal {result.signal}" if result.signal else f"status {result.exit_code}"
    return None, f"{how} {result.error_text[-300:]}".strip()


async def _runner(
    sandbox: Sandbox, interpreter: str, order: Mapping[str, object], seconds: float
) -> RunResult:
    result = await sandbox.run(
        [interpreter, "-I", "-B", f"{PROGRAMS}/verifier.py"],
        stdin=json.dumps(order).encode(),
        cwd="/",
        timeout=seconds,
        output_limit=REPORT_BYTES_MAX,
    )
    if result.cancelled:
        raise Unavailable("the verification was cancelled by the platform")
    return result


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]
