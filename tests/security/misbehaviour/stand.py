"""Tries one misbehaviour: in a real sandbox, then where it succeeds; and says what came of both."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from behaviours import Behaviour, Weakness
from graders import GRADERS
from naive import NO_AUDIT, NO_GUARDS

from skerry.errors import SandboxError
from skerry.integrity.conduct import deed_of
from skerry.spec.command import RunResult
from skerry.spec.verdict import Verdict
from skerry.worker.environment import Environment
from skerry.worker.lives import sandbox_of
from skerry.worker.verify import Guards, Submission, collect, grade

HERE = Path(__file__).parent
REACHED = "reached: "
SECONDS = 300.0
LOOK = "cat /root/mine; ls -A / /root /tmp; cat /proc/[0-9]*/comm | grep -cx sleep"


@dataclass(frozen=True)
class Trial:
    """What came of one row. `problems` says in words why it was not blocked; none: it was."""

    behaviour: Behaviour
    problems: tuple[str, ...]
    verdict: str
    seen: frozenset[str]  # names of evidence, notes and what was dropped
    control: str  # what it came to in the weakened configuration; "": nothing

    @property
    def blocked(self) -> bool:
        """True if it changed no reward, reached nothing and harmed nobody."""
        return not self.problems

    @property
    def as_expected(self) -> bool:
        """True if it was blocked, or is one of those of which the table says that they are not."""
        if self.behaviour.limit:
            return self.problems == ("it earned 1.0",)
        return self.blocked

    @property
    def detected(self) -> bool:
        """True if all that must be visible is."""
        return self.behaviour.audit <= self.seen


def programs(place: Path) -> Path:
    """Compiles what some of the scripts need; returns the directory."""
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]
    for name, source, extra in (
        ("attacks", HERE.parent / "attacks.c", ["-static"]),
        ("preload.so", HERE / "preload.c", ["-shared", "-fPIC"]),
    ):
        subprocess.run(["gcc", *flags, *extra, "-o", str(place / name), str(source)], check=True)
    return place


class Stand:
    """One node under attack, with a neighbour who must not notice anything."""

    def __init__(
        self,
        client: Any,
        environment: Environment,
        programs: Path,
        weak: Callable[[str], Any],
        graded: dict[str, Verdict],
    ) -> None:
        self._client = client
        self._environment = environment
        self._programs = programs
        self._weak = weak
        self._graded = graded
        self._neighbour: Any = None
        self._before = ""
        self._node = 0

    @asynccontextmanager
    async def neighbour(self) -> AsyncIterator[None]:
        """Has the neighbour live for a block."""
        self._node = (await self._client.health()).pid
        async with await self._client.sandboxes.create() as neighbour:
            await neighbour.run("echo here > /root/mine; setsid sleep 1000 >/dev/null 2>&1 &")
            self._neighbour = neighbour
            self._before = (await neighbour.run(LOOK)).text
            yield
            self._neighbour = None

    async def attempt(self, behaviour: Behaviour) -> Trial:
        """Tries it for real, and then where it succeeds."""
        problems: list[str] = []
        control = ""
        async with self._sandbox(self._client, behaviour, behaviour.spec) as sandbox:
            result = await self._run(sandbox, behaviour)
            problems += [f"it reached {what}" for what in reached(result)]
            deeds = [deed_of(behaviour.script, result)]
            submission = await collect(sandbox, self._environment, Guards(), deeds)
            problems += filter(None, [recording(submission)])
            verdict = await self._grade(submission, Guards())
            if behaviour.weakness in GRADERS:
                reward = await GRADERS[behaviour.weakness](sandbox)
                control = "" if reward == 0 else f"reward {reward:g}"
            elif behaviour.weakness is Weakness.SAME_SANDBOX:
                done = await sandbox.run(list(behaviour.after), cwd="/", timeout=30)
                control = "" if done.ok else "the sandbox is not what it was"
            elif behaviour.weakness in {Weakness.NO_AUDIT, Weakness.NO_GUARDS}:
                control = await self._without_defences(sandbox, behaviour)
        control = control or await self._elsewhere(behaviour)
        problems += await self._harm()
        if verdict.reward != 0:
            problems.append(f"it earned {verdict.reward}")
        if verdict.outcome not in behaviour.verdicts:
            problems.append(f"the verdict is {verdict.outcome}: {verdict.detail}")
        return Trial(
            behaviour,
            tuple(problems),
            str(verdict.outcome),
            names(submission, verdict),
            control,
        )

    async def _harm(self) -> list[str]:
        harm = []
        if (await self._client.health()).pid != self._node:
            harm.append("the node is another one")
        if (await self._neighbour.run(LOOK)).text != self._before:
            harm.append("the neighbour noticed it")
        return harm

    @asynccontextmanager
    async def _sandbox(
        self, client: Any, behaviour: Behaviour, spec: dict[str, Any], *, hidden: bool = False
    ) -> AsyncIterator[Any]:
        environment = self._environment
        limits = {key: value for key, value in spec.items() if key != "output_limit"}
        task = msgspec.structs.replace(
            environment.task, limits=msgspec.structs.replace(environment.task.limits, **limits)
        )
        async with sandbox_of(
            client,
            task,
            image=environment.image,
            layers=environment.verify_layers if hidden else environment.layers,
            seconds=SECONDS,
            labels={"role": "misbehaves"},
        ) as sandbox:
            for name in behaviour.needs:
                where = "/usr/local/bin" if name == "attacks" else "/tmp"
                await sandbox.files.upload(self._programs / name, f"{where}/{name}")
            yield sandbox

    async def _run(
        self, sandbox: Any, behaviour: Behaviour, env: dict[str, str] | None = None, limit: int = 0
    ) -> RunResult:
        return await sandbox.run(
            behaviour.script,
            cwd=self._environment.task.workdir,
            env=env,
            timeout=behaviour.timeout,
            output_limit=limit or behaviour.output_limit,
        )

    async def _grade(self, submission: Submission, guards: Guards) -> Verdict:
        """Grades each different submission once: what comes of it depends on nothing else."""
        if submission.verdict is not None:
            return submission.verdict
        kept = [(one.path, one.type, one.mode, one.target) for one in submission.audit.kept]
        key = hashlib.sha256(
            repr((submission.tar, kept, submission.audit.deleted, guards)).encode()
        ).hexdigest()
        if key not in self._graded:
            try:
                self._graded[key] = await grade(
                    self._client,
                    self._environment,
                    submission,
                    guards=guards,
                    labels={"role": "verify"},
                )
            except SandboxError as error:
                self._graded[key] = Verdict("failed", 0.0, detail=error.message)  # type: ignore[arg-type]
        return self._graded[key]

    async def _without_defences(self, sandbox: Any, behaviour: Behaviour) -> str:
        guards = NO_AUDIT if behaviour.weakness is Weakness.NO_AUDIT else NO_GUARDS
        verdict = await self._grade(await collect(sandbox, self._environment, guards), guards)
        return f"reward {verdict.reward:g}" if verdict.reward else ""

    async def _elsewhere(self, behaviour: Behaviour) -> str:
        """Returns what it reaches in the weakened node or sandbox that it is meant for."""
        weakness = behaviour.weakness
        if weakness is Weakness.ROOMY:
            roomy = behaviour.spec | behaviour.roomy
            async with self._sandbox(self._client, behaviour, roomy) as sandbox:
                limit = behaviour.roomy.get("output_limit", 0)
                found = reached(await self._run(sandbox, behaviour, limit=limit))
        elif weakness is Weakness.HIDDEN_LAYERS:
            async with self._sandbox(self._client, behaviour, {}, hidden=True) as sandbox:
                found = reached(await self._run(sandbox, behaviour))
        elif weakness in {Weakness.HOST_ROOT, Weakness.HOST_NETWORK}:
            node = await asyncio.to_thread(self._weak, str(weakness))
            with socket.create_server(("127.0.0.1", 0)) as service:
                port = service.getsockname()[1]
                # Of the host's services and sockets only our own are spoken to.
                env = {"SCAN": f"{port}-{port}", "ONLY": "skerry"}
                async with node.client() as client, self._sandbox(client, behaviour, {}) as sandbox:
                    found = reached(await self._run(sandbox, behaviour, env))
        elif weakness is Weakness.BARE_HOST:
            found = await asyncio.to_thread(on_bare_host, behaviour.script)
        else:
            return ""
        return ", ".join(sorted(found)[:4]) + (
            f" and {len(found) - 4} more" if len(found) > 4 else ""
        )


def on_bare_host(script: str) -> frozenset[str]:
    """Returns what a script reaches on an ext4 of its own, mounted in a mount namespace of its own."""
    with tempfile.TemporaryDirectory(prefix="skerry-bare-", dir="/var/tmp") as place:
        image, top = f"{place}/image", f"{place}/top"
        os.mkdir(top)
        with open(image, "wb") as file:
            file.truncate(64 << 20)
        line = (
            f"mkfs.ext4 -q -F {image} && mount -o loop {image} {top} && "
            f'{{ PLACE={top} sh -c "$SCRIPT"; status=$?; umount {top}; exit $status; }}'
        )
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", line],
            env=os.environ | {"SCRIPT": script},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    return lines_of(done.stdout)


def lines_of(text: str) -> frozenset[str]:
    """Returns what lines "reached: WHAT" name."""
    return frozenset(
        line.removeprefix(REACHED) for line in text.splitlines() if line.startswith(REACHED)
    )


def reached(result: RunResult) -> frozenset[str]:
    """Returns what a script reached. Of a flood that was cut off, nothing is what it says."""
    return frozenset() if result.truncated else lines_of(result.text)


def recording(submission: Submission) -> str:
    """Returns why a submission cannot go on record, or an empty text."""
    try:
        msgspec.msgpack.encode((submission.audit, submission.verdict, submission.audit.notes()))
    except UnicodeEncodeError:
        return "it cannot be recorded"
    return ""


def names(submission: Submission, verdict: Verdict) -> frozenset[str]:
    """Returns the names of everything that is visible of a rollout."""
    audit = submission.audit
    every = ["ungradable"] if "cannot be graded" in verdict.detail else []
    every += [one.kind for one in (*verdict.evidence, *audit.evidence, *audit.noted)]
    return frozenset(
        [*every, *(one.rule for one in audit.dropped), *(["kept"] if audit.kept else [])]
    )


def summary(trials: list[Trial]) -> str:
    """Returns the table of all trials, for people."""
    rows = [("aim", "behaviour", "blocked", "verdict", "succeeds where", "with", "seen by")]
    rows += [
        (
            str(one.behaviour.aim), one.behaviour.name, "yes" if one.blocked else "NO", one.verdict,
            str(one.behaviour.weakness), one.control or "NOTHING",
            " ".join(sorted(one.behaviour.audit & one.seen)) or "NOTHING",
        )
        for one in trials
    ]  # fmt: skip
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in rows
    )
