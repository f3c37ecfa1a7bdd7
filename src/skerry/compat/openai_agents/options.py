"""What a session may be given, and what is kept of it to find it again; both are JSON."""

from __future__ import annotations

from typing import Any, Literal

from agents.sandbox.session import SandboxSessionState
from agents.sandbox.session.sandbox_client import BaseSandboxClientOptions
from pydantic import ConfigDict, model_validator

from skerry.compat.options import CREATION, refuse_unknown
from skerry.errors import InvalidRequest
from skerry.spec.limits import MIB

OUTPUT_LIMIT = 16 * MIB
FILE_LIMIT = 256 * MIB
PAUSED_TTL_S = 7 * 24 * 3600.0  # a sandbox that waits for a resume that never comes ends by itself

Exit = Literal["destroy", "pause"]
Persistence = Literal["commit", "tar"]


class SkerrySandboxClientOptions(BaseSandboxClientOptions):
    """Options of `create`; further names are those of `skerry.SandboxOptions`, one to one.

    Another name is refused with those that there are.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Literal["skerry"] = "skerry"
    image: str = "debian:12"
    exposed_ports: tuple[int, ...] = ()
    """Ports inside that `resolve_exposed_port` gives an address for, on this program's machine."""
    on_exit: Exit = "destroy"
    """What becomes of the sandbox at the end of a run: "pause" keeps it, with its processes."""
    workspace_persistence: Persistence = "commit"
    """How a snapshot keeps the workspace: a commit of the whole disk in the node's store, of which the
    snapshot holds the name; or a tar of the workspace, which any other sandbox client can read too."""
    output_limit: int = OUTPUT_LIMIT
    """Bytes that are kept of each stream of a command; the middle is cut out."""
    file_limit: int = FILE_LIMIT
    """Bytes of a file that is read: it is held in memory."""

    @model_validator(mode="after")
    def _known(self) -> SkerrySandboxClientOptions:
        own = frozenset(type(self).model_fields) - {"type"}
        try:
            refuse_unknown(self.model_extra or {}, own | CREATION)
        except InvalidRequest as error:
            raise ValueError(error.message) from None
        return self

    def creation(self) -> dict[str, Any]:
        """Returns what a sandbox is made with."""
        return {"image": self.image, **(self.model_extra or {})}


class SkerrySandboxSessionState(SandboxSessionState):
    """What finds a session again: no address and no token, which the client has."""

    type: Literal["skerry"] = "skerry"
    sandbox_id: str
    creation: dict[str, Any]
    on_exit: Exit = "destroy"
    workspace_persistence: Persistence = "commit"
    output_limit: int = OUTPUT_LIMIT
    file_limit: int = FILE_LIMIT
