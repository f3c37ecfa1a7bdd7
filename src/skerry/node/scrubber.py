"""The node's share in the scrub of its layer store, and what it says of damage that anybody found.

It goes on in a thread of its own, slowly, and behind everybody else on the disk and the processors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from skerry.errors import SkerryError
from skerry.images.commits.packing import give_way
from skerry.images.store.patrol import Patrol
from skerry.images.store.records import Suspect
from skerry.node.clock import Clock, sleep
from skerry.node.life.sandbox import Sandbox
from skerry.spec.layers import LayerCheck, MountMode

LOOK_S: Final = 60.0  # between two looks for a layer that is due
log = logging.getLogger("skerry.node")


class Scrubber:
    """Without a patrol nothing is scrubbed."""

    def __init__(self, patrol: Patrol | None, sandboxes: Iterable[Sandbox], clock: Clock) -> None:
        self._patrol, self._sandboxes, self._clock = patrol, sandboxes, clock
        self._damaged: dict[str, Suspect] = {}
        self._mounts = 0  # live trusted ones of damaged layers

    def gauges(self) -> dict[str, float]:
        """Returns plain counts by name."""
        patrol = self._patrol
        if patrol is None:
            return {}
        return {
            "store_scrubbed_layers_total": patrol.layers,
            "store_scrubbed_bytes_total": patrol.bytes_read,
            "store_chunk_lists_mended_total": patrol.mended,
            "store_damaged_layers": len(self._damaged),
            "store_damaged_mounts": self._mounts,
        }

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Scrubs within the block. A layer that is under way at its end is laid down half done."""
        patrol = self._patrol
        if patrol is None:
            yield
            return
        thread = ThreadPoolExecutor(1, "scrub", give_way)
        task = asyncio.create_task(self._work(patrol, thread))
        try:
            yield
        finally:
            patrol.stop()
            task.cancel()
            await asyncio.wait((task,))
            thread.shutdown(wait=False, cancel_futures=True)

    async def look(self) -> None:
        """Takes note of which layers are damaged, and flags what reads them in place."""
        if self._patrol is None:
            return
        try:
            self._flag(await asyncio.to_thread(self._patrol.suspects.known))
        except SkerryError as error:
            log.warning("it is not known which layers are damaged: %s", error)

    async def _work(self, patrol: Patrol, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        pause = min(LOOK_S, max(1.0, patrol.every_s / 20)) if patrol.every_s else LOOK_S
        while True:
            await self.look()
            await sleep(self._clock, pause)
            try:
                while patrol.every_s and (check := await loop.run_in_executor(thread, patrol.step)):
                    await self._tell(check)
            except SkerryError as error:
                log.warning("the layer store was not scrubbed: %s", error)
            except Exception:  # what fails once must not end this for good
                log.exception("the layer store was not scrubbed")

    async def _tell(self, check: LayerCheck) -> None:
        for damage in check.mended:
            log.warning("%s: made its %s again: %s", check.name, damage.part, damage.problem)
        if check.damage:
            await self.look()
        else:
            log.debug("%s is good: %d bytes read", check.name, check.bytes_read)

    def _flag(self, damaged: dict[str, Suspect]) -> None:
        reading: dict[str, list[str]] = {}
        for sandbox in self._sandboxes:
            mounts = []
            for one in sandbox.mounts:
                # Of a verified mount each chunk is checked when it is read.
                hit = one.mode is MountMode.TRUSTED and one.digest in damaged
                if hit and sandbox.instance is not None:
                    reading.setdefault(one.digest, []).append(sandbox.id)
                mounts.append(
                    one if one.damaged == hit else msgspec.structs.replace(one, damaged=hit)
                )
            sandbox.mounts = tuple(mounts)
        self._mounts = sum(map(len, reading.values()))
        for digest in damaged.keys() - self._damaged.keys():
            suspect, found = damaged[digest], damaged[digest].damage[0]
            ids = reading.get(digest, [])
            log.error(
                "platform fault: layer %s (%s) is damaged, says %s: %s: %s; files: %s; "
                "%d live sandboxes read it in place: %s",
                suspect.name,
                digest,
                suspect.holder,
                found.part,
                found.problem,
                ", ".join(found.files[:5]) or "not known",
                len(ids),
                ", ".join(ids[:20]) or "none",
            )
        for digest in self._damaged.keys() - damaged.keys():
            log.info("layer %s (%s) is mended", self._damaged[digest].name, digest)
        self._damaged = damaged
