"""Building a layer from a recipe: one sandbox and one cached layer a step, then one layer of all.

Each step runs in a sandbox of its own, on what the steps before it made. Of several stages those are
built that the last one takes something of. A step's changes are kept whole in the layer
`workspace/build-cache/KEY`; KEY is a digest of the base, of all steps so far and of what they copy. A
step whose layer is there is not run again. The result is what all steps together changed, scrubbed by
the rules of commits.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from skerry.errors import NotFound, SandboxFailed
from skerry.sdk.context import Context
from skerry.sdk.recipe_copy import context_of, copy, copy_from
from skerry.sdk.sandbox import AsyncSandbox
from skerry.spec.layers import ImageConfig, LayerKind, LayerManifest, composed_config
from skerry.spec.recipe import BUILD_CACHE_NAME, CopyStep, RunStep, Step, plan
from skerry.spec.recipe_stages import Recipe

CACHE = f"{LayerKind.WORKSPACE}/{BUILD_CACHE_NAME}"
TAIL_LINES = 40  # of a failed step's output, for who did not listen
LAYERS_MAX = 24  # below a step; the base and those of a sandbox's own come on top
_SEED = "skerry recipe 1"
_NOTHING = CopyStep(line=0, text="nothing to do", target="/")  # a layer without a file

Log = Callable[[str], None]
# Returns the base that a FROM names; NotFound.
Find = Callable[[str], Awaitable[LayerManifest]]
# Makes a sandbox of a base and layers; the build ends it.
Create = Callable[[str, Sequence[str]], Awaitable[AsyncSandbox]]


class Images(Protocol):
    """What a build needs of the images of a client."""

    async def inspect(self, name: str) -> LayerManifest:
        """Returns a layer; NotFound."""

    async def collapse(self, names: Sequence[str], into: str) -> LayerManifest:
        """Makes one layer of several."""


class Built(msgspec.Struct, frozen=True):
    """What the steps made: the base, layers on it, lowest first, and what they say of themselves."""

    base: str
    layers: tuple[str, ...]
    config: ImageConfig
    key: str  # of the base, the steps, what they copy, and the config


class RecipeBuild:
    """One build; `use_cache=False` runs every step again and puts its layer in the old one's place."""

    def __init__(
        self,
        images: Images,
        find: Find,
        create: Create,
        log: Log,
        *,
        timeout_s: float,
        use_cache: bool = True,
    ) -> None:
        self._images = images
        self._find = find
        self._create = create
        self._log = log
        self._timeout_s = timeout_s
        self._use_cache = use_cache
        self._stages: dict[int, Built] = {}
        self._origins: dict[str, Built] = {}

    async def run(self, recipe: Recipe, context: Context | None) -> Built:
        """Runs what is not cached; SandboxFailed names the line that failed, with its output."""
        built = await self._stage(recipe, len(recipe.stages) - 1, context)
        if not built.layers:
            name, step = f"{CACHE}/{built.key[:40]}", _NOTHING
            made = await self._cached(name) or await self._make(step, None, built, name)
            built = replace(built, layers=(_pinned(made),))
        return built

    async def _stage(self, recipe: Recipe, at: int, context: Context | None) -> Built:
        """Returns what one stage is, built once a build."""
        if (known := self._stages.get(at)) is not None:
            return known
        below = await self._below(recipe, at, context)
        planned = plan(recipe, below.config, at)
        for note in planned.notes:
            self._log(f"note: {note}")
        key, layers = below.key, list(below.layers)
        for number, step in enumerate(planned.steps, 1):
            origin = await self._origin(recipe, at, step, context)
            key = _digest(key, *_identity(step, context, origin))
            name = f"{CACHE}/{key[:40]}"
            stage = f"stage {at + 1}, " if len(recipe.stages) > 1 else ""
            self._log(f"[{stage}{number}/{len(planned.steps)}] {_short(step.text)}")
            if len(layers) == LAYERS_MAX:
                layers = [await self._folded(layers, f"{name}-below")]
            found = await self._cached(name)
            if found is None:
                so_far = replace(below, layers=tuple(layers))
                found = await self._make(step, context, so_far, name, origin)
            layers.append(_pinned(found))
        key = _digest(key, msgspec.json.encode(planned.config, order="sorted"))
        made = self._stages[at] = Built(below.base, tuple(layers), planned.config, key)
        return made

    async def _below(self, recipe: Recipe, at: int, context: Context | None) -> Built:
        """Returns what a stage begins with: an earlier stage, or an image."""
        base = recipe.stages[at].base
        earlier = recipe.earlier(base, at)
        if earlier is not None:
            return await self._stage(recipe, earlier, context)
        return await self._image(base)

    async def _image(self, name: str) -> Built:
        base = await self._find(name)
        key = _digest(_SEED, *(one.digest for one in base.layers()))
        return Built(_pinned(base), (), composed_config(base.layers()), key)

    async def _origin(
        self, recipe: Recipe, at: int, step: Step, context: Context | None
    ) -> Built | None:
        """Returns what a COPY --from copies from."""
        if isinstance(step, RunStep) or step.origin is None:
            return None
        earlier = recipe.earlier(step.origin, at, numbers=True)
        if earlier is not None:
            return await self._stage(recipe, earlier, context)
        if step.origin not in self._origins:
            self._origins[step.origin] = await self._image(step.origin)
        return self._origins[step.origin]

    async def _folded(self, layers: Sequence[str], name: str) -> str:
        """Returns one layer in the place of many: a sandbox takes no more than so many."""
        found = await self._cached(name) or await self._images.collapse(layers, name)
        return _pinned(found)

    async def _cached(self, name: str) -> LayerManifest | None:
        if not self._use_cache:
            return None
        try:
            found = await self._images.inspect(name)
        except NotFound:
            return None
        self._log("cached")
        return found

    async def _make(
        self,
        step: Step,
        context: Context | None,
        below: Built,
        name: str,
        origin: Built | None = None,
    ) -> LayerManifest:
        async with await self._create(below.base, below.layers) as sandbox:
            if isinstance(step, RunStep):
                await self._run(sandbox, step)
            elif origin is None:
                await copy(sandbox, step, context)
            else:
                async with await self._create(origin.base, origin.layers) as source:
                    await copy_from(source, sandbox, step)
            # Whole: what a step leaves in /tmp is there for the next one. The result is scrubbed.
            return await sandbox.commit(name, scrub=())

    async def _run(self, sandbox: AsyncSandbox, step: RunStep) -> None:
        lines = _Lines(self._log)
        command = sandbox.stream(
            step.argv,
            env=step.env,
            cwd=step.workdir,
            user=step.user,
            stdin=step.stdin,
            timeout=self._timeout_s,
        )
        result = None
        async for event in command:
            for data in (event.stdout, event.stderr):
                if data:
                    lines.feed(data)
            result = event.result or result
        lines.end()
        if result is not None and result.ok:
            return
        if result is None or result.timed_out:
            why = f"it took longer than {self._timeout_s:g} s"
        elif result.oom_killed:
            why = "it needs more memory than the build has"
        else:
            why = result.start_error or f"status {result.exit_code}"
        raise SandboxFailed(
            f"recipe, line {step.line}: {_short(step.text)} failed: {why}\n{lines.tail()}",
            line=step.line,
        )


def _pinned(manifest: LayerManifest) -> str:
    return f"{manifest.name}@{manifest.digest}"


def _digest(*parts: str | bytes) -> str:
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def _identity(step: Step, context: Context | None, origin: Built | None) -> tuple[str | bytes, ...]:
    """Returns what decides whether a step is the same as one that was made before."""
    fields = msgspec.to_builtins(step) | {"line": 0, "text": ""}
    if origin is not None:
        fields["origin"] = origin.key  # whatever it is called
    elif "origin" in fields:
        del fields["origin"]
    identity = msgspec.json.encode([type(step).__name__, fields], order="sorted")
    if isinstance(step, RunStep) or origin is not None or not step.sources:
        return (identity,)
    found = context_of(context, step)
    return identity, *(found.digest(found.pick(source)) for source in step.sources)


def _short(text: str) -> str:
    first = text.split("\n", 1)[0]
    return first if len(first) <= 100 else first[:97] + "..."


class _Lines:
    """Output as lines for people; the last ones are kept."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._last: list[str] = []

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        self._rest = self._rest[-65_536:]
        for line in lines:
            self._tell(line)

    def end(self) -> None:
        if self._rest:
            self._tell(self._rest)

    def tail(self) -> str:
        return "\n".join(self._last)

    def _tell(self, line: str) -> None:
        line = line.rstrip("\r").rpartition("\r")[2]  # of a progress bar its last state
        self._last = [*self._last[1 - TAIL_LINES :], line]
        self._log(line)
