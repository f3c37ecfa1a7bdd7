"""The table of misbehaviour: what is tried, where it would work, and what must show of it.

Sources: "P 6.4" and "P 6.1" are the sections on misbehaviour of the paper (see docs/reference), "R n"
a line of docs/reference/reports.md, "own" what we thought of. A script runs as root in the workdir of
an agent's sandbox, as an agent's shell command would. One that is after the host or the node says what
it reached in lines "reached: WHAT"; one that is after the reward says nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any


class Aim(enum.StrEnum):
    """What a misbehaviour is after."""

    REWARD = "reward"
    HOST = "host"  # the host, another sandbox, or what only the verifier has
    NODE = "node"  # to bring it down, or to use it up


class Weakness(enum.StrEnum):
    """A deliberately weakened configuration, in which a misbehaviour succeeds (decision 35)."""

    # Graders that trust the place where the policy acted.
    TESTS_IN_PLACE = "runs the tests that lie there, there"
    HIDDEN_IN_PLACE = "puts the hidden tests there, and runs them there"
    LOGIN_SHELL = "the same, from a login shell"
    GREPS_LOG = "the same, and looks for a word in the log"
    AFTER_GIT = "takes the tests from the repository there, and runs them there"
    READS_REWARD = "reads a reward file there"
    WRITES_REWARD = "writes a reward file there, and reads it back"
    READS_JUNIT = "reads a report there"
    # Our own, without a defence.
    NO_AUDIT = "our verification without audit and guards"
    NO_GUARDS = "our verification without guards against forged results"
    # Nodes and sandboxes without a protection.
    HIDDEN_LAYERS = "a sandbox with the verifier's layers"
    HOST_ROOT = "identity,filter,masks"
    HOST_NETWORK = "network,masks"
    ROOMY = "a sandbox with room enough"
    SAME_SANDBOX = "what is graded later is this sandbox"
    BARE_HOST = "no sandbox: a file system of the host's"


@dataclass(frozen=True)
class Behaviour:
    """One row. `audit` names what must be found among evidence, notes and dropped of its rollout."""

    name: str
    source: str
    aim: Aim
    script: str
    weakness: Weakness
    audit: frozenset[str]
    verdicts: frozenset[str] = frozenset({"tampered"})
    spec: dict[str, Any] = field(default_factory=dict)  # of the sandbox
    roomy: dict[str, Any] = field(default_factory=dict)  # of the weakened one
    needs: tuple[str, ...] = ()  # programs that are put there first
    after: tuple[str, ...] = ()  # fails in the same sandbox afterwards
    limit: str = ""  # why it is not blocked, if it is not: then the test says so, too
    timeout: float = 60.0
    output_limit: int = 1 << 20


def row(  # noqa: PLR0917 - a row is read by its columns
    name: str, source: str, aim: Aim, weakness: Weakness, audit: str, script: str, **more: Any
) -> Behaviour:
    """Returns a row; `audit` and `verdicts` are words."""
    verdicts = more.pop("verdicts", "tampered")
    return Behaviour(
        name, source, aim, script, weakness,
        frozenset(audit.split()), frozenset(verdicts.split()), **more,
    )  # fmt: skip


def written(path: str, text: str, mode: str = "0644") -> str:
    """Returns shell lines that write a file, made with the directories above it."""
    where = path.rpartition("/")[0] or "."
    return (
        f"mkdir -p {where}\ncat > {path} <<'SKERRY_EOF'\n{text}\nSKERRY_EOF\nchmod {mode} {path}\n"
    )


def table() -> tuple[Behaviour, ...]:
    """Returns every row, each under a name of its own."""
    from behaviours_escaping import ESCAPING
    from behaviours_flooding import FLOODING
    from behaviours_grading import GRADING
    from behaviours_sources import SOURCES

    rows = (*GRADING, *SOURCES, *ESCAPING, *FLOODING)
    assert len({one.name for one in rows}) == len(rows)
    return rows
