"""Makes sessions, finds them again, ends them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from agents.sandbox.errors import MountConfigError
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.dependencies import Dependencies
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import BaseSandboxClient
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from skerry import aio
from skerry.compat.openai_agents import faults
from skerry.compat.openai_agents.options import (
    PAUSED_TTL_S,
    SkerrySandboxClientOptions,
    SkerrySandboxSessionState,
)
from skerry.compat.openai_agents.session import SkerrySandboxSession
from skerry.compat.options import asked
from skerry.errors import NotFound
from skerry.spec.sandbox import State


class SkerrySandboxClient(BaseSandboxClient[SkerrySandboxClientOptions]):
    """A client of one node: by `url`, else SKERRY_URL, else this machine's.

    Each session has a connection of its own, so nothing of the client has to be closed.
    """

    backend_id = "skerry"
    supports_default_options = True

    def __init__(
        self,
        *,
        url: str | None = None,
        token: str | None = None,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        super().__init__()
        self._url = url
        self._token = token
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: SkerrySandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Returns a session on a sandbox of its own; it is to be started.

        WorkspaceStartError for a fault of the platform; InvalidRequest and NotFound as of
        `sandboxes.create`; MountConfigError for a manifest with mounts, which there are none of here.
        """
        options = options or SkerrySandboxClientOptions()
        manifest = manifest if manifest is not None else Manifest()
        _refuse_mounts(self._validate_manifest_for_create(manifest))
        session_id = uuid.uuid4()
        state = SkerrySandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            exposed_ports=options.exposed_ports,
            sandbox_id="",
            creation=_creation(options, session_id),
            on_exit=options.on_exit,
            workspace_persistence=options.workspace_persistence,
            output_limit=options.output_limit,
            file_limit=options.file_limit,
        )
        client = await self._open(state)
        return await self._fresh(client, state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Returns a session on the sandbox that the state names, let go on if it is paused.

        Where that is gone it is a new one, which gets what the state's snapshot has when it is started.
        """
        if not isinstance(state, SkerrySandboxSessionState):
            raise TypeError("SkerrySandboxClient.resume expects a SkerrySandboxSessionState")
        state.assert_path_grants_rebound()
        _refuse_mounts(state.manifest)
        client = await self._open(state)
        try:
            with faults.starting(_root(state)):
                sandbox = await _found(client, state.sandbox_id)
        except BaseException:
            await client.__aexit__(None, None, None)
            raise
        if sandbox is None:
            state.workspace_root_ready = False
            return await self._fresh(client, state)
        session = SkerrySandboxSession(state, client, sandbox)
        session._set_start_state_preserved(True)  # noqa: SLF001 - as providers tell the base class
        return self._wrap_session(session, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends the session's sandbox; one that is to be paused at exit stays, for `resume`.

        After `shutdown` there is nothing left to do.
        """
        inner = session._inner  # noqa: SLF001 - as the SDK's own clients do
        if not isinstance(inner, SkerrySandboxSession):
            raise TypeError("SkerrySandboxClient.delete expects a SkerrySandboxSession")
        return session

    async def destroy(self, state: SandboxSessionState) -> None:
        """Ends the sandbox of a state, also one that is paused; nothing happens if it is gone."""
        if not isinstance(state, SkerrySandboxSessionState):
            raise TypeError("SkerrySandboxClient.destroy expects a SkerrySandboxSessionState")
        async with aio.Client(self._url, self._token) as client:
            try:
                await (await client.sandboxes.get(state.sandbox_id)).destroy()
            except NotFound:
                return

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Returns the state that was serialized."""
        return self._deserialize_session_state_payload(payload, SkerrySandboxSessionState)

    async def _open(self, state: SkerrySandboxSessionState) -> aio.Client:
        client = aio.Client(self._url, self._token)
        with faults.starting(_root(state)):
            await client.__aenter__()
        return client

    async def _fresh(self, client: aio.Client, state: SkerrySandboxSessionState) -> SandboxSession:
        try:
            with faults.starting(_root(state), new=True):
                sandbox = await client.sandboxes.create(**state.creation)
        except BaseException:
            await client.__aexit__(None, None, None)
            raise
        state.sandbox_id = sandbox.id
        session = SkerrySandboxSession(state, client, sandbox)
        return self._wrap_session(session, instrumentation=self._instrumentation)


def _creation(options: SkerrySandboxClientOptions, session_id: uuid.UUID) -> dict[str, Any]:
    given = options.creation()
    if options.on_exit == "pause":  # it outlives this program, though not for ever
        given = {"detached": True, "idle_timeout": None, "ttl": PAUSED_TTL_S, **given}
    labels = {"session": session_id.hex}
    return asked(given, harness="openai-agents", labels=labels).creation


async def _found(client: aio.Client, sandbox_id: str) -> aio.Sandbox | None:
    try:
        sandbox = await client.sandboxes.get(sandbox_id)
        info = await sandbox.info()
        if info.state not in (State.RUNNING, State.STOPPING, State.STOPPED, State.FAILED):
            info = await sandbox.resume()  # also of one that is just being paused
    except NotFound:
        return None
    return sandbox if info.state is State.RUNNING else None


def _refuse_mounts(manifest: Manifest) -> None:
    for _mount, path in manifest.mount_targets():
        raise MountConfigError(
            message="Skerry's sandboxes have no mounts of cloud storage",
            context={"backend": "skerry", "mount_path": str(path)},
        )


def _root(state: SandboxSessionState) -> Path:
    return Path(state.manifest.root)
