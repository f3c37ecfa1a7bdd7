"""Writes src/skerry/sdk/sync.py: the sync face, one method per async one, with the same types.

    python scripts/generate_sync.py [--check]

Each class holds the async object and a portal; nothing else differs, so nothing is written twice by
hand. --check fails if the file on disk is not what would be written (tests/unit/sdk does that).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

SDK = Path(__file__).parents[1] / "src" / "skerry" / "sdk"
SOURCES = (
    "stream",
    "connect",
    "command",
    "commits",
    "session",
    "files",
    "sandbox",
    "sandboxes",
    "rollout_job",
    "jobs",
    "images",
    "functions",
    "rollout",
    "trajectories",
    "client",
)
CLASSES = {
    "LiveCommand": "LiveCommand",
    "AsyncConnection": "Connection",
    "AsyncCommandHandle": "CommandHandle",
    "AsyncCommitHandle": "CommitHandle",
    "AsyncSession": "Session",
    "AsyncFiles": "Files",
    "AsyncSandbox": "Sandbox",
    "AsyncSandboxes": "Sandboxes",
    "AsyncJobs": "Jobs",
    "AsyncJob": "Job",
    "AsyncImages": "Images",
    "AsyncTrajectories": "Trajectories",
    "AsyncModelRequest": "ModelRequest",
    "AsyncFunctions": "Functions",
    "AsyncRollout": "Rollout",
}
# In which file a base is.
BASES = {"SandboxDisk": "disk", "SandboxNetwork": "network", "FileContents": "contents"}
BASES |= {"RolloutJob": "rollout_job"}
HEAD = '''"""The sync face, made by scripts/generate_sync.py from the async classes. Do not edit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Literal, Unpack, cast, overload

from msgspec import UNSET, UnsetType

from skerry.errors import SkerryError
from skerry.sdk import client as _client
from skerry.sdk import command as _command
from skerry.sdk import commits as _commits
from skerry.sdk import connect as _connect
from skerry.sdk import files as _files
from skerry.sdk import functions as _functions
from skerry.sdk import images as _images
from skerry.sdk import rollout_job as _rollout_job
from skerry.sdk import jobs as _jobs
from skerry.sdk import rollout as _rollout
from skerry.sdk import sandbox as _sandbox
from skerry.sdk import sandboxes as _sandboxes
from skerry.sdk import session as _session
from skerry.sdk import stream as _stream
from skerry.sdk import trajectories as _trajectories
from skerry.sdk.bases import ImageSources
from skerry.sdk.call_stream import OnOutput
from skerry.sdk.connect import Forwarded
from skerry.sdk.files import Entries
from skerry.sdk.function_options import CallOptions, InputFiles
from skerry.sdk.functions import AT_ONCE, CallOutcome, CallProgress
from skerry.sdk.images import Log
from skerry.sdk.jobs import OnProgress
from skerry.sdk.options import SandboxOptions
from skerry.sdk.patience import WAIT_S
from skerry.sdk.portal import Portal, to_async
from skerry.sdk.repeat.choices import Choice
from skerry.sdk.running import Command
from skerry.sdk.transfer import Progress, Transfer
from skerry.spec.command import RunResult, Terminal
from skerry.spec.function import CallSpec
from skerry.spec.function_result import CallResult, PoolInfo
from skerry.spec.files import Change, FileInfo, TreeUsage, WatchEvent
from skerry.spec.job import JobInfo
from skerry.spec.layers import CollectReport, LayerCheck, LayerManifest, RecordsCheck
from skerry.spec.limits import OUTPUT_LIMIT_DEFAULT
from skerry.spec.rollout import Line, RolloutRecord
from skerry.spec.task import TaskSpec
from skerry.spec.trajectory import (
    EVENTS_PAGE_MAX,
    Event,
    EventPage,
    TrajectoryCheck,
    TrajectoryInfo,
)
from skerry.spec.sandbox import SandboxInfo, SandboxSpec, State, Usage
from skerry.spec.worker import (
    AnswerUrl,
    JobStatus,
    ModelSettings,
    RolloutStatus,
    Scaffold,
    Signal,
    Taken,
)
from skerry.wire.commits import CommitInfo
from skerry.wire.control import DrainState, NodeUsage
from skerry.wire.batch import BatchItem
from skerry.wire.http import Health, OpStatus, StreamEvent
from skerry.wire.jobs import JobMoved, JobQueue
from skerry.wire.network import NetworkView
from skerry.wire.sessions import SessionInfo
from skerry.wire.workers import WorkerInfo

'''
TAIL = '''
class Client:
    """Sandboxes, images and function calls of one node; close it, or use it as a context manager.

    The end of the interpreter closes it too.
    """

    def __init__(self, inner: _client.AsyncClient) -> None:
        self._inner = inner
        self._closed = False
        self._portal = Portal()
        try:
            self._portal.call(inner.__aenter__())
        except BaseException:
            self._portal.close()
            raise
        self._portal.before_exit(lambda: inner.__aexit__(None, None, None))
        self.sandboxes = Sandboxes(self._portal, inner.sandboxes)
        self.images = Images(self._portal, inner.images)
        self.trajectories = Trajectories(self._portal, inner.trajectories)
        self.jobs = Jobs(self._portal, inner.jobs)
        self.functions = Functions(self._portal, inner.functions)

    def __repr__(self) -> str:
        return repr(self._inner)

    def rollout(
        self, key: str, *, on_divergence: str = "stop", on_unknown: Choice = "wait"
    ) -> Rollout:
        """Returns the rollout of that key, to be entered: what is on record of it is not run again.

        Where the harness asks for something else than is on record, "stop" raises Diverged, "branch"
        goes on in a fresh sandbox with the nearest commit before. `on_unknown` is what is done about
        an operation of which nobody can say whether it ran: "wait" joins one that still runs and else
        raises OutcomeUnknown, "rerun" runs it again, "fail" raises at once; or a function that gets
        the Event and returns one of these. InvalidRequest.
        """
        inner = self._inner.rollout(key, on_divergence=on_divergence, on_unknown=on_unknown)
        return Rollout(self._portal, inner)

    def health(self) -> Health:
        """Returns the node's own view of itself."""
        return self._portal.call(self._inner.health())

    def usage(self, labels: dict[str, str] | None = None) -> NodeUsage:
        """Returns what every live sandbox with these labels uses, and what the host has left."""
        return self._portal.call(self._inner.usage(labels))

    def workers(self) -> list[WorkerInfo]:
        """Returns the node's workers, each with its state and its process id on the node's host."""
        return self._portal.call(self._inner.workers())

    def drain(self, *, grace: float | None = None) -> DrainState:
        """The node takes no new sandboxes; what lives after `grace` seconds is stopped, None: never."""
        return self._portal.call(self._inner.drain(grace=grace))

    def undrain(self) -> DrainState:
        """The node takes new sandboxes again."""
        return self._portal.call(self._inner.undrain())

    def drain_state(self) -> DrainState:
        """Returns how far the node is drained."""
        return self._portal.call(self._inner.drain_state())

    def close(self) -> None:
        """Gives up what the client holds; its undetached sandboxes on an embedded node end; once."""
        if self._closed:
            return
        self._closed = True
        try:
            self._portal.call(self._inner.__aexit__(None, None, None))
        finally:
            self._portal.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    state_dir: str | None = None,
    run_dir: str | None = None,
    wait: float = 0.0,
) -> Client:
    """Returns an open client; `url` is http://HOST:PORT or unix:///PATH.

    Without one (and without SKERRY_URL) an embedded node is found or started; that needs root. A node
    that does not answer at the url is asked again for `wait` seconds.
    """
    return Client(_client.AsyncClient(url, token, state_dir=state_dir, run_dir=run_dir, wait=wait))
'''
PREPARE = {
    "ModelRequest": (
        "        self.asked = inner.asked\n"
        "        self.id = inner.id\n"
        "        self.body = inner.body\n"
        "        self.endpoint = inner.endpoint\n"
        "        self.rollout = inner.rollout\n"
        "        self.task = inner.task\n"
    ),
    "CommandHandle": "        self.op_id = inner.op_id\n",
    "CommitHandle": (
        "        self.id = inner.id\n"
        "        self.freeze_seconds = inner.freeze_seconds\n"
        "        self.acknowledged = inner.acknowledged\n"
    ),
    "Session": "        self.id = inner.id\n        self.shell = inner.shell\n",
    "Job": (
        "        self.id = inner.id\n"
        "        self.spec = inner.spec\n"
        "        self.created_as = inner.created_as\n"
        "        self.sandboxes = Sandboxes(portal, inner.sandboxes)\n"
        "        self.images = Images(portal, inner.images)\n"
    ),
    "Rollout": "        self.key = inner.key\n",
    "Sandbox": ("        self.files = Files(portal, inner.files)\n"),
}
EXTRA = {
    "Rollout": """
    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Rollout:
        self._portal.call(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._inner.__aexit__())
""",
    "Sandbox": '''
    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def id(self) -> str:
        """Its id; in a rollout it changes if the sandbox has to be rebuilt."""
        return self._inner.id

    @property
    def created_as(self) -> SandboxInfo:
        """What was known of it when it was made, or found."""
        return self._inner.created_as

    @property
    def rebuilt(self) -> bool:
        """Whether it was restored from a commit, in a rollout, because its sandbox was lost."""
        return self._inner.rebuilt

    @property
    def branched(self) -> bool:
        """Whether it began, in a rollout, where something else was asked for than was on record."""
        return self._inner.branched

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    @contextlib.contextmanager
    def reverse_forward(self, port: int, host: str, target_port: int) -> Iterator[None]:
        """Connects 127.0.0.1:`port` inside to `host`:`target_port` as seen from here, for a block."""
        with self._portal.block(self._inner.reverse_forward(port, host, target_port)):
            yield
''',
    "Job": '''
    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Job:
        self._portal.call(self._inner.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._portal.call(self._inner.__aexit__())

    @property
    def lost(self) -> SkerryError | None:
        """Why heartbeats have stopped within the block: the job has ended, or was removed."""
        return self._inner.lost
''',
    "Session": """
    def __repr__(self) -> str:
        return repr(self._inner)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
""",
    "CommandHandle": '''
    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def status(self) -> OpStatus:
        """What was last heard of it."""
        return self._inner.status
''',
    "CommitHandle": '''
    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def status(self) -> CommitInfo:
        """What was last heard of it."""
        return self._inner.status
''',
    "LiveCommand": '''
    @property
    def result(self) -> RunResult | None:
        """The result, once it has come."""
        return self._inner.result

    def __iter__(self) -> Iterator[StreamEvent]:
        """Yields events up to the result."""
        return self._portal.iterate(self._inner.__aiter__())
''',
}


def sync_type(text: str) -> str:
    """Returns an annotation with the async names replaced."""
    text = text.replace("AsyncIterator", "Iterator").replace("AsyncGenerator", "Iterator")
    return re.sub(rf"\b({'|'.join(CLASSES)})\b", lambda m: CLASSES[m[1]], text)


def arguments(node: ast.AsyncFunctionDef) -> tuple[str, str]:
    """Returns the signature with sync types, and the call that passes everything on."""
    signature = sync_type(ast.unparse(node.args))
    passed = [convert(argument) for argument in node.args.args[1:]]
    passed += [f"{argument.arg}={convert(argument)}" for argument in node.args.kwonlyargs]
    if node.args.kwarg is not None:
        passed.append(f"**{node.args.kwarg.arg}")
    return signature, ", ".join(passed)


def convert(argument: ast.arg) -> str:
    """Returns the expression that hands one argument to the async method."""
    kind = ast.unparse(argument.annotation) if argument.annotation else ""
    if "AsyncIterator" in kind:
        return f"to_async({argument.arg})"
    if "AsyncSandbox" in kind:
        return f"[item if isinstance(item, str) else item._inner for item in {argument.arg}]"
    return argument.arg


def method(node: ast.AsyncFunctionDef) -> str:
    """Returns the sync method's source."""
    signature, passed = arguments(node)
    returns = ast.unparse(node.returns) if node.returns else "None"
    doc = ast.get_docstring(node, clean=False) or ""
    call = f"self._inner.{node.name}({passed})"
    context = any("contextmanager" in ast.unparse(part) for part in node.decorator_list)
    if any(ast.unparse(part) == "overload" for part in node.decorator_list):
        return f"    @overload\n    def {node.name}({signature}) -> {sync_type(returns)}: ..."
    lines = [f"    def {node.name}({signature}) -> {sync_type(returns)}:", f'        """{doc}"""']
    if context:
        lines.insert(0, "    @contextlib.contextmanager")
        lines.append(f"        with self._portal.block({call}) as value:")
        inner = CLASSES.get(returns.removeprefix("AsyncIterator[").removesuffix("]"))
        lines.append(f"            yield {f'{inner}(self._portal, value)' if inner else 'value'}")
    elif (item := returns[14:-1]) in CLASSES and returns == f"AsyncIterator[{item}]":
        lines.append(f"        for item in self._portal.iterate({call}):")
        lines.append(f"            yield {CLASSES[item]}(self._portal, item)")
    elif returns.startswith(("AsyncIterator", "AsyncGenerator")):
        lines.append(f"        return self._portal.iterate({call})")
    elif (other := returns.rpartition(" | ")[2]) in CLASSES and other != returns:
        kind = f"_{other.removeprefix('Async').removesuffix('Handle').lower()}s.{other}"
        lines.append(f"        value = self._portal.call({call})")
        made = f"{CLASSES[other]}(self._portal, value)"
        lines.append(f"        return {made} if isinstance(value, {kind}) else value")
    elif returns in CLASSES:
        lines.append(f"        return {CLASSES[returns]}(self._portal, self._portal.call({call}))")
    elif (item := returns.removeprefix("list[").removesuffix("]")) in CLASSES:
        lines.append(f"        found = self._portal.call({call})")
        lines.append(f"        return [{CLASSES[item]}(self._portal, item) for item in found]")
    else:
        lines.append(f"        return self._portal.call({call})")
    return "\n".join(lines) + "\n"


def inherited(node: ast.ClassDef) -> list[ast.stmt]:
    """Returns what a class takes from a base in another file of the SDK."""
    bases = [BASES[base] for one in node.bases if (base := ast.unparse(one)) in BASES]
    trees = [ast.parse((SDK / f"{source}.py").read_text()) for source in bases]
    return [
        part
        for tree in trees
        for found in tree.body
        if isinstance(found, ast.ClassDef) and found.name in BASES
        for part in found.body
    ]


def render() -> str:
    """Returns the whole file."""
    parts = [HEAD]
    for source in SOURCES:
        tree = ast.parse((SDK / f"{source}.py").read_text())
        for node in tree.body:
            if not isinstance(node, ast.ClassDef) or node.name not in CLASSES:
                continue
            name = CLASSES[node.name]
            inner = f"_{source}.{node.name}"
            doc = (ast.get_docstring(node) or "").replace(
                "async context manager", "context manager"
            )
            parts.append(f'\nclass {name}:\n    """{doc}\n    """\n')
            parts.append(
                f"\n    def __init__(self, portal: Portal, inner: {inner}) -> None:\n"
                f"        self._portal = portal\n        self._inner = inner\n{PREPARE.get(name, '')}\n"
            )
            parts.extend(
                method(part) + "\n"
                for part in (*inherited(node), *node.body)
                if isinstance(part, ast.AsyncFunctionDef) and not part.name.startswith("_")
            )
            parts.append(EXTRA.get(name, ""))
    parts.append(TAIL)
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", "sync.py", "-"],
        input="".join(parts),
        capture_output=True,
        text=True,
        check=True,
    )
    return formatted.stdout


def main() -> int:
    """Writes the file, or with --check says whether it is current."""
    target = SDK / "sync.py"
    text = render()
    if "--check" in sys.argv:
        current = target.read_text() if target.exists() else ""
        if current != text:
            print("src/skerry/sdk/sync.py is stale: run python scripts/generate_sync.py")
            return 1
        return 0
    target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
