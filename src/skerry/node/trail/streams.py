"""Standard input and output that are too long for a record: kept by their digests."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

from skerry.errors import StorageFailed
from skerry.trajectory.shipping.contents import Contents, Writer

log = logging.getLogger("skerry.node")


class Streams:
    """The long streams of one command, until the record that names them is written."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self._writers: list[Writer] = []

    async def keep(self, contents: Contents, name: str, data: bytes) -> None:
        """Takes one stream. What cannot be kept is named as dropped: the command has run."""
        writer = contents.writer()
        self._writers.append(writer)

        def work() -> Any:
            writer.add(data)
            return writer.end()

        try:
            self.kept[name] = await asyncio.to_thread(work)
        except StorageFailed as error:
            log.warning("a long stream is not kept: %s", error)
            digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
            self.kept[name] = {"dropped": True, "sha256": digest, "bytes": len(data)}

    def drop(self) -> None:
        """The record is written, or never will be."""
        for writer in self._writers:
            writer.drop()
        self._writers.clear()
