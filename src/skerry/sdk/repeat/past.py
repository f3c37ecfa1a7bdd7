"""What is on record of a rollout when it is run again: its sandboxes, and what is left of each."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import msgspec

from skerry.errors import NotFound, SkerryError
from skerry.sdk.repeat import answers
from skerry.sdk.repeat.choices import Choice, OnDivergence
from skerry.sdk.repeat.story import Story
from skerry.sdk.trajectories import AsyncTrajectories
from skerry.sdk.transport import Transport
from skerry.spec.layers import LayerManifest
from skerry.spec.sandbox import SandboxInfo, SandboxSpec, State
from skerry.spec.trajectory import Event, Outcome
from skerry.wire.commits import CommitInfo, CommitState

AT_ONCE: Final = 16


class Tale(NamedTuple):
    """The beginning of a sandbox's record."""

    sandbox: str
    spec: SandboxSpec
    event: Event

    def info(self) -> SandboxInfo:
        """Returns the sandbox as it was when it was created."""
        result = self.event.result or {}
        return SandboxInfo(
            id=self.sandbox,
            state=State.RUNNING,
            spec=self.spec,
            digests=tuple(result.get("digests", ())),
            created=self.event.started,
            parent=result.get("parent"),
            restored=result.get("restored"),
        )


class Remains(NamedTuple):
    """What is left of a sandbox that is gone."""

    destroyed: bool  # the harness itself did it
    kept: int  # the event up to which all that was done to it can be had again
    layer: str | None  # the commit that holds that


class Past:
    """The sandboxes of a rollout by the key with which they were created, and how to repeat them."""

    def __init__(
        self,
        transport: Transport,
        key: str,
        on_divergence: OnDivergence,
        on_unknown: Choice,
        wait: float,
    ) -> None:
        self.transport, self.key, self.wait = transport, key, wait
        self.on_divergence, self.on_unknown = on_divergence, on_unknown
        self.trajectories = AsyncTrajectories(transport)
        self.stories: list[Story] = []
        self._by_key: dict[str, Tale] = {}
        self._by_id: dict[str, Tale] = {}

    async def read(self) -> None:
        """Finds what is on record."""
        places = asyncio.Semaphore(AT_ONCE)

        async def begin(sandbox: str) -> None:
            async with places:
                page = await self.trajectories.page(sandbox, 0, limit=1)
            event = page.events[0] if page.events else None
            if event is None or event.action != "create" or event.outcome is Outcome.ERROR:
                return
            spec = msgspec.convert(event.request, SandboxSpec)
            tale = self._by_id[sandbox] = Tale(sandbox, spec, event)
            if spec.key is None:
                return
            # A create that was broken off and begun again has made two: the second one counts.
            other = self._by_key.get(spec.key)
            if other is None or other.event.started < event.started:
                self._by_key[spec.key] = tale

        found = [info.sandbox async for info in self.trajectories.iterate(rollout=self.key)]
        await asyncio.gather(*map(begin, found))

    async def close(self) -> None:
        """Nothing is read ahead any more."""
        for story in self.stories:
            await story.close()

    def find(self, key: str) -> Tale | None:
        """Returns the sandbox that was created with a key, if one is on record."""
        return self._by_key.get(key)

    def of(self, sandbox: str) -> Tale | None:
        """Returns what is on record of a sandbox."""
        return self._by_id.get(sandbox)

    async def living(self, sandbox: str) -> SandboxInfo | None:
        """Returns a sandbox that the node still has; None."""
        try:
            return await self.transport.call(
                "GET", f"/v1/sandboxes/{sandbox}", SandboxInfo, repeatable=True
            )
        except NotFound:
            return None

    async def remains(self, sandbox: str) -> Remains:
        """Reads all of a record once; holds little of it."""
        destroyed, commits = False, list[Event]()
        story = Story(self.trajectories, sandbox)
        async for event in self.trajectories.events(sandbox):
            if event.action in ("harness.destroy", "harness.stop"):
                destroyed = True
            elif event.action == "commit" and event.outcome is Outcome.DONE:
                commits.append(event)
        try:
            for commit in reversed(commits if not destroyed else ()):
                layer = await self.layer_of(sandbox, story, commit)
                if layer is not None:
                    return Remains(False, commit.ordinal, layer)
        finally:
            await story.close()
        return Remains(destroyed, 0, None)

    async def layer_of(self, sandbox: str, story: Story | None, commit: Event) -> str | None:
        """Returns the layer, by name and digest, that a commit on record became; None if none."""
        try:
            info = await self.transport.call(
                "GET",
                f"/v1/commits/{commit.op}",
                CommitInfo,
                repeatable=True,
                params={"wait": "60"},
            )
            if info.manifest is not None:
                return f"{info.manifest.name}@{info.manifest.digest}"
        except NotFound:
            pass  # of another node, or long ago
        if story is not None and (layer := await story.layer_of(commit.op)) is not None:
            return layer
        name = str(commit.request.get("name"))
        try:  # it was packed, but its node did not live to say so
            found = await self.transport.call("GET", f"/v1/images/{name}", LayerManifest)
        except SkerryError:
            return None
        made_by = found.recipe.get("sandbox") if isinstance(found.recipe, dict) else None
        return f"{found.name}@{found.digest}" if made_by == sandbox else None

    async def commit(self, sandbox: str, story: Story | None, event: Event) -> CommitInfo | None:
        """Returns a commit on record of which the node knows no more; None if there is no layer."""
        layer = await self.layer_of(sandbox, story, event)
        if layer is None:
            return None
        manifest = await self.transport.call(
            "GET", f"/v1/images/{layer}", LayerManifest, repeatable=True
        )
        known = answers.commit_info(event, sandbox)
        return msgspec.structs.replace(known, state=CommitState.DONE, manifest=manifest)
