"""The layers of a task: toolkit, dependencies, workspace, hidden tests; built once, found by recipe.

    base/debian:12                     the OS
    workspace/ID:HASH                  the bug release unpacked at the workdir, with its own tests
    workspace/ID-setup:HASH          what the task's setup commands left: in both
    workspace/ID-tests:HASH            the fix release's test paths: only ever in a verifying sandbox
    toolkit/pytest:8.3.5-HASH          pytest in the system interpreter, from wheels, without network
    toolkit/ID-deps:HASH               what else the tests need, likewise

A tag is a hash of everything that the layer is made from, so a second run finds it, and a change of
any input makes another. Package code runs in sandboxes without network only.
"""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from skerry.errors import NotFound
from skerry.integrity.protected import Rules, rules_of
from skerry.integrity.sources import remarked
from skerry.spec.layers import LayerKind, LayerManifest, parse_layer_name
from skerry.spec.stages import AgentStage, VerifyStage, absolute
from skerry.spec.task import Archive, TaskSpec
from skerry.worker.archives import gold_patch, pristine_digests, source_files, top_level_modules
from skerry.worker.downloads import Downloads, Wanted, wanted_of
from skerry.worker.lives import together
from skerry.worker.ports import Images

PYTEST_VERSION = "8.3.5"
PYTEST = (
    Wanted(
        "pytest-8.3.5-py3-none-any.whl",
        "c69214aa47deac29fad6c2a4f590b9c4a9fdb16a403176fe154b79c0b4d4d820",
        "pytest",
    ),
    Wanted(
        "pluggy-1.5.0-py3-none-any.whl",
        "44e1ad92c8ca002de6377e165f3e0f1be63266ab4d554740532335b9d75ea669",
        "pluggy",
    ),
    Wanted(
        "iniconfig-2.0.0-py3-none-any.whl",
        "b6a85871a79d2e3b22d2d1b94ac2824226a63c6b741c88f7ae975f18b6778374",
        "iniconfig",
    ),
    Wanted(
        "packaging-24.2-py3-none-any.whl",
        "09abb1bccd265c01f4a3aa3f7a7db064b36514d2cba19a2f694fe6150451a759",
        "packaging",
    ),
)
SUITES = {"11": "bullseye", "12": "bookworm", "13": "trixie"}
INSTALL = (
    "{python} -m pip install --quiet --no-index --no-deps --no-cache-dir --break-system-packages "
    "--root-user-action=ignore /build/*.whl"
)
UNPACK = (
    "mkdir -p {workdir} && tar -xzf /build/{file} -C {workdir} --strip-components=1 "
    "--no-same-owner --no-same-permissions && chmod -R u+rwX,go+rX {workdir}"
)
BUILDS = 2  # at a time
# The task's own verifier, in the hidden layer: for an account that nobody else has.
SCORE_PROGRAM = "/opt/skerry-hidden/score.py"
SCORE_UID = 65_533
PUT_SCORE = (
    "mkdir -p -m 0755 /opt/skerry-hidden && cp /build/skerry-score.py {path} && "
    "chown {uid}:{uid} {path} && chmod 0400 {path}"
)

Say = Callable[[str], None]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """A task ready to run: pinned layers for agent and verifier, the rules, and the real fix."""

    task: TaskSpec
    image: str  # pinned by digest, as are all layers
    layers: tuple[str, ...]
    hidden: str
    digests: tuple[str, ...]  # of image and layers: agent and verifier share them
    rules: Rules
    patch: bytes
    files: frozenset[str]  # regular files of the untouched workdir
    agent_layers: tuple[str, ...] = ()  # of its stage only, above the others
    verifier_layers: tuple[str, ...] = ()  # likewise
    remarked: frozenset[tuple[str, str]]  # what there is to say of its sources before anybody acts

    @property
    def verify_layers(self) -> tuple[str, ...]:
        """The same layers with the hidden tests above the workspace."""
        workspaces = [name for name in self.layers if name.startswith("workspace/")]
        others = [name for name in self.layers if not name.startswith("workspace/")]
        return (*workspaces, self.hidden, *others, *self.verifier_layers)

    def acting(self) -> dict[str, Any]:
        """Returns what an agent's sandbox is made with beside image, layers and limits."""
        stage = self.task.stages.agent
        return {"user": stage.user, "network": stage.network, **self._covers(stage)}

    def verifying(self) -> dict[str, Any]:
        """Returns the same of a verifying sandbox: never a network."""
        # Root is the runner's user; the tests have another one.
        return {"user": "root", **self._covers(self.task.stages.verify)}

    def _covers(self, stage: AgentStage | VerifyStage) -> dict[str, tuple[str, ...]]:
        workdir = self.task.workdir
        return {
            "readonly": absolute(stage.readonly, workdir),
            "hidden": absolute(stage.hidden, workdir),
        }


class Builder:
    """Makes environments; layers that several tasks share are made once."""

    def __init__(self, images: Images, downloads: Downloads, say: Say) -> None:
        self._images = images
        self._downloads = downloads
        self._say = say
        self._locks: dict[str, asyncio.Lock] = {}
        self._gate = asyncio.Semaphore(BUILDS)

    async def build(self, tasks: Sequence[TaskSpec]) -> tuple[Environment, ...]:
        """Returns the tasks' environments, in order; fetches and builds what is missing."""
        await self._downloads.fetch(wanted_of(tasks, PYTEST), self._say)
        return tuple(await together(self._environment(task) for task in tasks))

    async def _environment(self, task: TaskSpec) -> Environment:
        base = await self._base(task.image)
        image = base.pinned
        python = task.tests.interpreter
        further = await self._named(task.layers)
        toolkit = await self._wheels(
            f"toolkit/pytest:{PYTEST_VERSION}", image, (), list(PYTEST), python
        )
        layers = [*further, toolkit.pinned]
        wheels = [wheel.archive for wheel in task.wheels]
        if wheels:
            own = await self._wheels(f"toolkit/{task.id}-deps:", image, layers, wheels, python)
            layers.append(own.pinned)
        workspace = await self._workspace(task, image)
        workspaces = [workspace.pinned]
        if task.stages.setup.commands:
            made = await self._setup(task, image, (*workspaces, *layers))
            workspaces.append(made.pinned)
        hidden = await self._hidden(task, image, workspaces)
        # Lowest first: workspaces lie beneath toolkits.
        ordered = (*workspaces, *layers)
        bug, fix = await asyncio.to_thread(self._sources, task)
        installed = await asyncio.to_thread(self._modules, [*PYTEST, *wheels])
        return Environment(
            task=task,
            image=image,
            layers=ordered,
            hidden=hidden.pinned,
            digests=tuple(name.rpartition("@")[2] for name in (image, *ordered)),
            rules=rules_of(task, installed_modules=installed, pristine=pristine_digests(task, bug)),
            patch=gold_patch(task, bug, fix),
            files=frozenset(f"{task.workdir}/{path}" for path in bug),
            agent_layers=tuple(await self._named(task.stages.agent.layers)),
            verifier_layers=tuple(await self._named(task.stages.verify.layers)),
            remarked=await asyncio.to_thread(remarked, bug),
        )

    def _sources(self, task: TaskSpec) -> tuple[dict[str, bytes], dict[str, bytes]]:
        bug, fix = task.package.bug.archive, task.package.fix.archive
        return (
            source_files(self._downloads.read(bug), bug.file),
            source_files(self._downloads.read(fix), fix.file),
        )

    def _modules(self, wheels: Sequence[Archive]) -> frozenset[str]:
        return top_level_modules((wheel.file, self._downloads.read(wheel)) for wheel in wheels)

    async def _base(self, image: str) -> LayerManifest:
        name = parse_layer_name(image, LayerKind.BASE)
        async with self._lock(str(name)):
            try:
                return await self._images.inspect(str(name))
            except NotFound:
                suite = SUITES.get(name.tag, name.tag)
                if name.kind is not LayerKind.BASE or name.name != "debian" or name.digest:
                    raise
            self._say(f"building {name}")
            return await self._images.debian(str(name), suite, on_log=self._say)

    async def _wheels(
        self,
        name: str,
        image: str,
        layers: Sequence[str],
        wheels: Sequence[Archive],
        python: str,
    ) -> LayerManifest:
        recipe = [image, *layers, INSTALL, python, *(wheel.sha256 for wheel in wheels)]
        tag = f"{name}{'' if name.endswith(':') else '-'}{_hash(recipe)}"
        return await self._layer(tag, image, layers, wheels, [INSTALL.format(python=python)])

    async def _workspace(self, task: TaskSpec, image: str) -> LayerManifest:
        bug = task.package.bug.archive
        step = UNPACK.format(workdir=task.workdir, file=bug.file)
        name = f"workspace/{task.id}:{_hash([image, step, bug.sha256])}"
        return await self._layer(name, image, (), [bug], [step])

    async def _named(self, names: Sequence[str]) -> list[str]:
        return [(await self._images.inspect(name)).pinned for name in names]

    async def _setup(self, task: TaskSpec, image: str, layers: Sequence[str]) -> LayerManifest:
        setup = task.stages.setup
        below = (*layers, *(await self._named(setup.layers)))
        recipe = [image, *below, *setup.network, *setup.commands]
        options = {
            "workdir": task.workdir,
            "network": setup.network,
            "timeout": setup.timeout_s,
        }
        name = f"workspace/{task.id}-setup:{_hash(recipe)}"
        return await self._layer(name, image, below, (), setup.commands, options=options)

    async def _hidden(self, task: TaskSpec, image: str, workspaces: Sequence[str]) -> LayerManifest:
        fix = task.package.fix.archive
        unpack = UNPACK.format(workdir="/build/fix", file=fix.file)
        steps = [unpack]
        for path in task.test_paths:
            inside = f"{task.workdir}/{path}"
            fresh, old, above = (
                shlex.quote(one)
                for one in (f"/build/fix/{path}", inside, inside.rpartition("/")[0])
            )
            steps.append(f"rm -rf {old} && mkdir -p {above} && cp -r {fresh} {old}")
        texts = {}
        if task.tests.score is not None:
            steps.append(PUT_SCORE.format(path=SCORE_PROGRAM, uid=SCORE_UID))
            texts["skerry-score.py"] = task.tests.score.program
        recipe = [image, *workspaces, *steps, fix.sha256, *texts.values()]
        name = f"workspace/{task.id}-tests:{_hash(recipe)}"
        return await self._layer(name, image, workspaces, [fix], steps, texts=texts)

    async def _layer(
        self,
        name: str,
        image: str,
        layers: Sequence[str],
        files: Sequence[Archive],
        steps: Sequence[str],
        *,
        texts: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> LayerManifest:
        async with self._lock(name):
            try:
                return await self._images.inspect(name)
            except NotFound:
                pass
            async with self._gate:
                self._say(f"building {name}")
                with tempfile.TemporaryDirectory(prefix="skerry-build-") as folder:
                    for file in files:
                        data = await asyncio.to_thread(self._downloads.read, file)
                        (Path(folder) / file.file).write_bytes(data)
                    for file_name, text in (texts or {}).items():
                        (Path(folder) / file_name).write_text(text)
                    return await self._images.build(
                        name,
                        image=image,
                        layers=layers,
                        context=folder,
                        steps=steps,
                        **(options or {}),
                    )

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())


def _hash(recipe: Sequence[str]) -> str:
    return hashlib.sha256("\x00".join(recipe).encode()).hexdigest()[:12]
