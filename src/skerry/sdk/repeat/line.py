"""One sandbox of a rollout over all its runs: what is on record of it, then the sandbox itself.

A line has chapters, each a sandbox of its own. The first is the sandbox as it was created. Another one
follows where the one before was lost ("rebuilt": restored from its last commit) or where the harness
asked for something else ("branched": from the nearest commit before). Its label says from which
operation on it counts, so that every later run finds the same chapters.

Operations are counted in the order in which the harness begins them.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import msgspec

from skerry.errors import Bug, Diverged, OutcomeUnknown
from skerry.sdk.making import create_as
from skerry.sdk.patience import Patience
from skerry.sdk.repeat import names
from skerry.sdk.repeat.calls import Step, told
from skerry.sdk.repeat.choices import chosen, diverged, no_branch, unknown
from skerry.sdk.repeat.past import Past, Tale
from skerry.sdk.repeat.story import Story
from skerry.spec.sandbox import IMAGE_DEFAULT, SandboxInfo, SandboxSpec, State
from skerry.spec.trajectory import Event, Outcome, as_json, request_digest
from skerry.wire.asked import NOTHING_CHANGED

ATTEMPTS_MAX: Final = 100
_ENDED: Final = frozenset({State.STOPPED, State.FAILED})
_OPEN: Final = frozenset({Outcome.RUNNING, Outcome.VOID})


class Chapter:
    """One sandbox of a line. `story` is None for one that was made in this run."""

    def __init__(self, generation: int, first: int, spec: SandboxSpec, info: SandboxInfo) -> None:
        self.generation, self.first = generation, first
        self.spec, self.info = spec, info
        self.story: Story | None = None
        self.alive = True
        self.kept: int | None = None  # what comes after this event of a lost sandbox is lost
        self.restored_from: str | None = None  # the layer of the commit that `kept` is

    @property
    def sandbox(self) -> str:
        """Its id."""
        return self.info.id


class Turn(NamedTuple):
    """What is to be done for one operation: give what is on record, or ask the sandbox."""

    event: Event | None  # None: ask
    op: str
    chapter: Chapter
    ordinal: int


class Line:
    """Invariant: `chapters` are in the order of their `first`; only the last one is asked for more."""

    def __init__(
        self, past: Past, sandbox: str, *, key: str | None = None, forked: bool = False
    ) -> None:
        self._past = past
        self.name = sandbox
        self._key = key or names.sandbox_key(past.key, sandbox, 0)
        self._forked = forked
        self._ids = names.Operations(past.key, sandbox)
        self.chapters: list[Chapter] = []
        self._ordinal = 0
        self._commits: list[tuple[Chapter, Event]] = []  # that were repeated, in order
        self._turn = asyncio.Lock()  # one at a time decides about a new chapter

    @property
    def last(self) -> Chapter:
        """The one that is there, or was last."""
        return self.chapters[-1]

    @property
    def marked(self) -> str:
        """Why the sandbox is another one than was created: "rebuilt", "branched", or ""."""
        labels = self.chapters[-1].spec.labels if self.chapters else {}
        return names.read_marker(labels.get(names.MARKER))[0]

    def key_of(self, generation: int) -> str:
        """Returns the key with which that sandbox is created."""
        if generation == 0:
            return self._key
        return names.sandbox_key(self._past.key, self.name, generation)

    def take(self) -> int:
        """Returns the next operation's ordinal."""
        self._ordinal += 1
        return self._ordinal - 1

    # --- the sandbox -----------------------------------------------------------------------------

    async def open(self, spec: SandboxSpec, wait: float) -> None:
        """Finds the sandbox and its chapters, or makes it. Raises Diverged, and what a create does."""
        while (tale := self._past.find(self.key_of(len(self.chapters)))) is not None:
            self._adopt(tale)
        if not self.chapters:
            await self._make(spec, 0, wait)
            return
        base = [one for one in self.chapters if one.first == 0][-1]
        recorded, asked = _created(base.spec), _created(spec)
        if request_digest(recorded) != request_digest(asked) and not base.spec.restore:
            error = diverged(base.sandbox, 0, ("create", recorded), ("create", asked))
            if self._past.on_divergence == "stop":
                raise error
            await self._make(self._marked(spec, "branched", 0), 0, wait)
            return
        await self._look()

    async def join(self, info: SandboxInfo) -> None:
        """Takes a member of a fork, which is there or was."""
        tale = self._past.of(info.id)
        if tale is None:  # made in this run
            self.chapters.append(Chapter(0, 0, info.spec, info))
            return
        self._adopt(tale)
        while (tale := self._past.find(self.key_of(len(self.chapters)))) is not None:
            self._adopt(tale)
        await self._look()

    def _adopt(self, tale: Tale) -> None:
        spec = tale.spec
        _, first = names.read_marker(spec.labels.get(names.MARKER))
        chapter = Chapter(len(self.chapters), first, spec, tale.info())
        chapter.story = Story(self._past.trajectories, tale.sandbox)
        self._past.stories.append(chapter.story)
        self.chapters.append(chapter)

    async def _look(self) -> None:
        """Asks whether the last sandbox is there still; if not, what of it can be had again."""
        chapter = self.last
        info = await self._past.living(chapter.sandbox)
        if info is not None and info.state not in _ENDED:
            chapter.info = info
            return
        chapter.alive = False
        found = await self._past.remains(chapter.sandbox)
        if not found.destroyed:  # else all that was done with it is on record
            chapter.kept, chapter.restored_from = found.kept, found.layer

    async def _make(self, spec: SandboxSpec, first: int, wait: float) -> None:
        generation = len(self.chapters)
        whole = msgspec.structs.replace(spec, key=self.key_of(generation))
        info = await create_as(self._past.transport, whole, Patience(wait))
        chapter = Chapter(generation, first, whole, info)
        self.chapters.append(chapter)

    def _marked(self, spec: SandboxSpec, why: str, first: int) -> SandboxSpec:
        labels = spec.labels | {names.MARKER: names.marker(why, first)}
        return msgspec.structs.replace(spec, labels=labels)

    # --- operations ------------------------------------------------------------------------------

    async def turn(self, step: Step, ordinal: int) -> Turn:
        """Returns what is on record of an operation, or where it is to be asked for.

        Raises Diverged, OutcomeUnknown.
        """
        chapter = self._chapter(ordinal)
        for attempt in range(ATTEMPTS_MAX):
            op = self.op_id(ordinal, chapter, attempt)
            event = None
            if chapter.story is not None:
                event = await chapter.story.find(op, names.refusal(op))
            lost = chapter.kept is not None and (event is None or event.ordinal > chapter.kept)
            if lost and step.action != "harness.destroy":
                return await self._rebuilt(step, ordinal, chapter, event)
            if event is None or event.outcome in _OPEN:
                return await self._live(step, ordinal, chapter, event, op)
            if event.error is not None and event.error.get("message") == NOTHING_CHANGED:
                continue  # its harness died while it sent the content
            if not self._same(step, event):
                return await self._parted(step, ordinal, chapter, event)
            if event.outcome is Outcome.UNKNOWN:
                if step.looks or chosen(self._past.on_unknown, event) == "rerun":
                    continue
                raise unknown(event, ordinal, "its node or sandbox was lost under way")
            if event.action == "commit" and event.outcome is Outcome.DONE:
                self._commits.append((chapter, event))
            return Turn(event, op, chapter, ordinal)
        raise OutcomeUnknown(f"operation {ordinal} was lost {ATTEMPTS_MAX} times")

    def op_id(self, ordinal: int, chapter: Chapter, attempt: int = 0) -> str:
        """Returns the id of an operation in a chapter."""
        return self._ids.id(ordinal, chapter.generation, attempt)

    def _chapter(self, ordinal: int) -> Chapter:
        for chapter in reversed(self.chapters):
            if chapter.first <= ordinal:
                return chapter
        raise Bug(f"no chapter of {self.name} begins before operation {ordinal}")

    def _same(self, step: Step, event: Event) -> bool:
        """Whether that is the operation that is asked for, as far as is known before its content is."""
        if event.action == "harness.refused":
            recorded = event.request
            return recorded.get("action") == step.action and (
                step.content or recorded.get("digest") == request_digest(step.request)
            )
        if event.action != step.action:
            return False
        if step.content:  # an error may have come before all of it did
            given = {name: value for name, value in event.request.items() if name != "content"}
            return request_digest(given) == request_digest(step.request)
        if event.action == "commit":
            given = told(event.action, event.request)
            return request_digest(given) == request_digest(step.request)
        return event.request_digest == request_digest(step.request)

    async def _live(
        self, step: Step, ordinal: int, chapter: Chapter, event: Event | None, op: str
    ) -> Turn:
        """It never began, or is under way: then the same id joins it."""
        if event is not None and event.outcome is Outcome.RUNNING:
            if not step.content and not self._same(step, event):
                return await self._parted(step, ordinal, chapter, event)
            if not step.looks and chosen(self._past.on_unknown, event) == "fail":
                raise unknown(event, ordinal, "it was under way, and is not waited for")
        return Turn(None, op, chapter, ordinal)

    async def _parted(self, step: Step, ordinal: int, chapter: Chapter, event: Event) -> Turn:
        """The harness asks for something else than is on record."""
        error = diverged(
            chapter.sandbox, ordinal, (event.action, event.request), (step.action, step.request)
        )
        if self._past.on_divergence == "stop":
            raise error
        return await self.branch(ordinal, error)

    async def branch(self, ordinal: int, error: Diverged) -> Turn:
        """Returns a fresh sandbox with the nearest commit before an operation, and nothing after it."""
        async with self._turn:
            chapter = self._chapter(ordinal)
            if chapter is self.last:
                spec = await self._nearest(chapter.spec, error)
                await self._make(self._marked(spec, "branched", ordinal), ordinal, self._past.wait)
            return Turn(None, self.op_id(ordinal, self.last), self.last, ordinal)

    async def _nearest(self, spec: SandboxSpec, error: Diverged) -> SandboxSpec:
        for chapter, commit in reversed(self._commits):
            layer = await self._past.layer_of(chapter.sandbox, chapter.story, commit)
            if layer is not None:
                return restoring(spec, layer)
        if self._forked:
            raise no_branch(error, self.chapters[0].sandbox, len(self._commits)) from error
        return spec

    async def _rebuilt(
        self, step: Step, ordinal: int, chapter: Chapter, event: Event | None
    ) -> Turn:
        """The sandbox was lost with all that came after its last commit."""
        asks = event is not None and not step.looks
        if event is not None and asks and chosen(self._past.on_unknown, event) != "rerun":
            why = "its sandbox was lost, and this came after the last commit: what it did is gone"
            raise unknown(event, ordinal, why)
        async with self._turn:
            if self.last is chapter:
                if chapter.restored_from is None and self._forked and not chapter.spec.restore:
                    raise OutcomeUnknown(
                        f"{chapter.sandbox} was lost, and no commit of it is on record: what a fork "
                        "begins with cannot be had again",
                        sandbox=chapter.sandbox,
                        ordinal=ordinal,
                    )
                layer = chapter.restored_from
                spec = chapter.spec if layer is None else restoring(chapter.spec, layer)
                await self._make(self._marked(spec, "rebuilt", ordinal), ordinal, self._past.wait)
        now = self._chapter(ordinal)
        return Turn(None, self.op_id(ordinal, now), now, ordinal)


def restoring(spec: SandboxSpec, layer: str) -> SandboxSpec:
    """Returns the spec of a sandbox that begins with a commit."""
    return msgspec.structs.replace(spec, restore=layer, image=IMAGE_DEFAULT, layers=())


def _created(spec: SandboxSpec) -> dict[str, object]:
    """Returns what counts of a create: not its key, nor what the rollout adds to it."""
    labels = {name: value for name, value in spec.labels.items() if name != names.MARKER}
    known = msgspec.structs.replace(spec, key=None, labels=labels)
    found: dict[str, object] = as_json(msgspec.to_builtins(known))
    return found
