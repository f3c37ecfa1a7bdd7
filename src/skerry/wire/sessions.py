"""Bodies of the routes of sessions."""

from __future__ import annotations

import msgspec

from skerry.spec.session import SessionSpec


class SessionCreate(SessionSpec, frozen=True, kw_only=True, omit_defaults=True):
    """A session to make; a repeat with the same id finds it."""

    id: str | None = None  # None: the node gives it one

    def spec(self) -> SessionSpec:
        """Returns what is asked for, without the id."""
        return SessionSpec(shell=self.shell, cwd=self.cwd, env=self.env, user=self.user)


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session as it stands."""

    id: str
    spec: SessionSpec
    shell: str  # the one that runs: sh where the image has no bash
    created: float
    commands: int = 0  # that were begun in it
    running: str | None = None  # the operation id of the command that has its turn
    waiting: int = 0  # commands that wait for theirs
