"""What a transport says of the sandbox whose requests it carries: nothing, but in a rollout."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from skerry.spec.sandbox import SandboxInfo

if TYPE_CHECKING:
    from skerry.sdk.transport import Transport


class Direct:
    """Requests go to the sandbox that they name; `repeat/transport.py` does otherwise."""

    @property
    def now(self) -> SandboxInfo | None:
        """The sandbox to which requests go, if it is another one than they name."""
        return None

    @property
    def rebuilt(self) -> bool:
        """Whether that one stands in for a sandbox that was lost."""
        return False

    @property
    def branched(self) -> bool:
        """Whether it began where a rollout asked for something else than was on record."""
        return False

    def new_name(self) -> str:
        """Returns a name for something inside a sandbox that nobody has named."""
        return secrets.token_hex(8)

    def member(self: Transport, info: SandboxInfo) -> Transport:  # type: ignore[misc]  # noqa: ARG002
        """Returns what carries the requests of a sandbox that a fork made."""
        return self


class Identity:
    """The part of a sandbox that says which one it is."""

    _transport: Transport

    def __init__(self, info: SandboxInfo) -> None:
        self._info = info

    @property
    def id(self) -> str:
        """Its id; in a rollout it changes if the sandbox has to be rebuilt."""
        return self.created_as.id

    @property
    def created_as(self) -> SandboxInfo:
        """What was known of it when it was made, or found."""
        return self._transport.now or self._info

    @property
    def rebuilt(self) -> bool:
        """Whether it was restored from a commit, in a rollout, because its sandbox was lost."""
        return self._transport.rebuilt

    @property
    def branched(self) -> bool:
        """Whether it began, in a rollout, where something else was asked for than was on record."""
        return self._transport.branched
