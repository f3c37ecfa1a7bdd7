"""Building a layer from a recipe: one sandbox and one cached layer a step, then one layer of all.

Each step runs in a sandbox of its own, on what the steps before it made. Its changes are kept whole in
the layer `workspace/build-cache/KEY`; KEY is a digest of the base, of all steps so far and of what
they copy. A step whose layer is there is not run again. The result is what all steps together
changed, scrubbed by the rules of commits.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import posixpath
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec

from skerry.errors import InvalidRequest, NotFound, SandboxFailed
from skerry.sdk.context import Context
from skerry.sdk.pack import Look
from skerry.sdk.sandbox import AsyncSandbox
from skerry.sdk.transfer import in_thread
from skerry.spec.files import FileType
from skerry.spec.layers import ImageConfig, LayerKind, LayerManifest, composed_config
from skerry.spec.recipe import BUILD_CACHE_NAME, CopyStep, Recipe, RunStep, Step, plan

CACHE = f"{LayerKind.WORKSPACE}/{BUILD_CACHE_NAME}"
USERS_BYTES_MAX = 1 << 20
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

    async def run(self, recipe: Recipe, context: Context | None) -> Built:
        """Runs what is not cached; SandboxFailed names the line that failed, with its output."""
        base = await self._find(recipe.base)
        planned = plan(recipe, composed_config(base.layers()))
        for note in planned.notes:
            self._log(f"note: {note}")
        pinned = _pinned(base)
        key = _digest(_SEED, *(one.digest for one in base.layers()))
        layers: list[str] = []
        steps = planned.steps or (_NOTHING,)
        for number, step in enumerate(steps, 1):
            key = _digest(key, *_identity(step, context))
            name = f"{CACHE}/{key[:40]}"
            self._log(f"[{number}/{len(steps)}] {_short(step.text)}")
            if len(layers) == LAYERS_MAX:
                layers = [await self._folded(layers, f"{name}-below")]
            found = await self._cached(name)
            if found is None:
                found = await self._make(step, context, pinned, layers, name)
            layers.append(_pinned(found))
        key = _digest(key, msgspec.json.encode(planned.config, order="sorted"))
        return Built(pinned, tuple(layers), planned.config, key)

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
        self, step: Step, context: Context | None, base: str, layers: Sequence[str], name: str
    ) -> LayerManifest:
        async with await self._create(base, layers) as sandbox:
            if isinstance(step, RunStep):
                await self._run(sandbox, step)
            else:
                await _copy(sandbox, step, context)
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


def _identity(step: Step, context: Context | None) -> tuple[str | bytes, ...]:
    """Returns what decides whether a step is the same as one that was made before."""
    fields = msgspec.to_builtins(step) | {"line": 0, "text": ""}
    identity = msgspec.json.encode([type(step).__name__, fields], order="sorted")
    if isinstance(step, RunStep) or not step.sources:
        return (identity,)
    found = _context(context, step)
    return identity, *(found.digest(found.pick(source)) for source in step.sources)


def _context(context: Context | None, step: CopyStep) -> Context:
    if context is None:
        raise InvalidRequest(f"recipe, line {step.line}: COPY needs a context directory")
    return context


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


# --- COPY ---


async def _copy(sandbox: AsyncSandbox, step: CopyStep, context: Context | None) -> None:
    """Puts files where the step says, root's unless it says otherwise."""
    look = await _look(sandbox, step)
    picked = []
    if step.sources:
        found = _context(context, step)
        picked = [one for source in step.sources for one in found.pick(source)]
    several = len(picked) + len(step.files) > 1
    into = step.target.endswith("/") or several or any(one.directory for one in picked)
    target = step.target.rstrip("/") or "/"
    if not into and await _is_directory(sandbox, target):
        into = True
    place = target if into else posixpath.dirname(target)
    await sandbox.files.mkdir(place, parents=True, user="root")
    alone = posixpath.basename(target)
    if picked:
        placed = [
            (one, "" if one.directory else posixpath.basename(one.path) if into else alone)
            for one in picked
        ]
        found = _context(context, step)
        await _put(sandbox, place, lambda: found.tar(placed, [], look))
    if step.files:
        texts = [(name if into else alone, content) for name, content in step.files]
        await _put(sandbox, place, lambda: iter((_documents(texts, look),)))


async def _put(sandbox: AsyncSandbox, place: str, make: Callable[[], Iterator[bytes]]) -> None:
    pieces: AsyncIterator[bytes]
    async with aclosing(in_thread(make)) as pieces:
        await sandbox.files.put_tree(place, pieces, user="root")


def _documents(texts: Sequence[tuple[str, str]], look: Look) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in texts:
            data = content.encode("utf-8", "surrogateescape")
            info = tarfile.TarInfo(name)
            info.size, info.uid, info.gid = len(data), look.uid, look.gid
            info.mode = 0o644 if look.mode is None else look.mode
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


async def _is_directory(sandbox: AsyncSandbox, path: str) -> bool:
    try:
        return (await sandbox.files.stat(path, follow=True, user="root")).type is FileType.DIRECTORY
    except NotFound:
        return False


async def _look(sandbox: AsyncSandbox, step: CopyStep) -> Look:
    mode = None if step.mode is None else int(step.mode, 8)
    if step.owner is None:
        return Look(mode=mode)
    user, _, group = step.owner.partition(":")
    uid, own_gid = await _id_of(sandbox, user, "/etc/passwd", step.line)
    gid = (await _id_of(sandbox, group, "/etc/group", step.line))[0] if group else own_gid
    return Look(uid, gid, mode)


async def _id_of(sandbox: AsyncSandbox, name: str, path: str, line: int) -> tuple[int, int]:
    """Returns a name's number in the image, and in passwd its group's; a number stands for itself."""
    if name.isascii() and name.isdecimal():
        return int(name), int(name)
    try:
        text = await sandbox.files.read(path, length=USERS_BYTES_MAX, user="root")
    except NotFound:
        text = b""
    for entry in text.decode("utf-8", "surrogateescape").splitlines():
        fields = entry.split(":")
        if len(fields) > 3 and fields[0] == name and fields[2].isdecimal():
            return int(fields[2]), int(fields[3]) if fields[3].isdecimal() else int(fields[2])
    raise InvalidRequest(f"recipe, line {line}: --chown: the image knows no {name!r} in {path}")
