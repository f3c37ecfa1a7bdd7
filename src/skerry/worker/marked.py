"""A client whose sandboxes are all made with further options: a key, a job, a place for the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skerry.spec.sandbox import SandboxInfo
from skerry.wire.http import Health
from skerry.worker.ports import Client, Images, Jobs, Sandbox, Sandboxes


class Marked:
    """Like the client that it is given, but for what its sandboxes are made with."""

    def __init__(self, client: Client, **options: Any) -> None:
        self._client = client
        self._sandboxes = MarkedSandboxes(client.sandboxes, options)

    @property
    def sandboxes(self) -> Sandboxes:
        """Its sandboxes."""
        return self._sandboxes

    @property
    def images(self) -> Images:
        """Its layers."""
        return self._client.images

    @property
    def jobs(self) -> Jobs:
        """Its jobs."""
        return self._client.jobs

    async def health(self) -> Health:
        """Returns the node's view of itself."""
        return await self._client.health()


class MarkedSandboxes:
    """The sandboxes of a marked client."""

    def __init__(self, sandboxes: Sandboxes, options: dict[str, Any]) -> None:
        self._sandboxes = sandboxes
        self._options = options
        self._made = 0

    async def create(self, backend: str = "container", **options: Any) -> Sandbox:
        """Returns a running sandbox; each has the key with a number of its own."""
        self._made += 1
        marks = self._options | {"key": f"{self._options['key']}/{self._made}"}
        return await self._sandboxes.create(backend, **(options | marks))

    async def get(self, sandbox_id: str) -> Sandbox:
        """Returns a sandbox."""
        return await self._sandboxes.get(sandbox_id)

    async def list(
        self, *, key: str | None = None, labels: dict[str, str] | None = None
    ) -> Sequence[SandboxInfo]:
        """Returns all that match."""
        return await self._sandboxes.list(key=key, labels=labels)
