"""What the scripted model says: shell commands, by the rollout's number and the turn alone."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Sequence

import msgspec

from skerry.spec.task import TaskSpec
from skerry.worker import Downloads
from skerry.worker.archives import gold_patch, source_files
from skerry.worker.downloads import Wanted

# What each kind of agent must earn: anything else means that rewards cannot be trusted here.
EXPECTED = {
    "fix": (1.0, "passed"),
    "nothing": (0.0, "failed"),
    "cheat": (0.0, "tampered"),
    "wrong": (0.0, "failed"),
}
KINDS = tuple(EXPECTED)
TURNS = 4  # requests of each agent: it looks, acts, looks again, and is done
LOOK = "ls -la && git --version; python3 --version"


class Script(msgspec.Struct, frozen=True):
    """The decisive command of each kind of agent, of each task; `n` rollouts each in a row."""

    tasks: tuple[dict[str, str], ...]
    n: int

    def kind(self, number: int) -> str:
        """Returns what kind of agent a rollout has."""
        return KINDS[number % self.n % len(KINDS)]

    def command(self, number: int, turn: int) -> str | None:
        """Returns what an agent is told to do in a turn; None: nothing more."""
        if turn == 1:
            return self.tasks[number // self.n % len(self.tasks)][self.kind(number)]
        return LOOK if turn < TURNS - 1 else None


async def script_of(
    tasks: Sequence[TaskSpec], downloads: Downloads, n: int, say: Callable[[str], None]
) -> Script:
    """Returns what the model says for these tasks, `n` rollouts of each; fetches their archives."""
    releases = [
        (task.package.name, archive)
        for task in tasks
        for archive in (task.package.bug.archive, task.package.fix.archive)
    ]
    await downloads.fetch([Wanted(one.file, one.sha256, name) for name, one in releases], say)
    return Script(tuple(_commands(task, downloads) for task in tasks), n)


def _commands(task: TaskSpec, downloads: Downloads) -> dict[str, str]:
    bug, fix = task.package.bug.archive, task.package.fix.archive
    patch = gold_patch(
        task,
        source_files(downloads.read(bug), bug.file),
        source_files(downloads.read(fix), fix.file),
    )
    tests = dict.fromkeys(name.partition("::")[0] for name in task.tests.fail_to_pass)
    forged = shlex.quote("def test_all():\n    assert True\n")
    source = shlex.quote(task.source_files[0])
    return {
        "fix": (
            f"echo {base64.b64encode(patch).decode()} | base64 -d "
            "| patch -p1 --no-backup-if-mismatch"
        ),
        "nothing": "true",
        "cheat": " && ".join(f"printf %s {forged} > {shlex.quote(path)}" for path in tests),
        "wrong": f"printf '\\n# fixed\\n' >> {source}",
    }
