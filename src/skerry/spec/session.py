"""What a session is: a shell in a sandbox that keeps its state from one command to the next."""

from __future__ import annotations

import os
import re

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec import limits
from skerry.spec.sandbox import check_env

SESSIONS_MAX = 16  # of a sandbox
QUEUE_MAX = 32  # commands that wait for their turn in one session
SCRIPT_BYTES_MAX = 16 * limits.MIB
SHELLS = frozenset({"bash", "sh", "dash", "ash", "busybox", "zsh", "ksh", "ksh93", "mksh"})
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_session_id(text: str) -> str:
    """Returns the id if it is one; raises InvalidRequest."""
    if _ID.fullmatch(text) is None:
        raise InvalidRequest(f"session: {text[:80]!r} is no id: 1 to 64 of A-Za-z0-9._-")
    return text


class SessionSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A shell by name or path, and what it starts with. `bash` falls back to `sh`."""

    shell: str = "bash"
    cwd: str | None = None  # None: the sandbox's workdir, else the user's home
    env: dict[str, str] = {}
    user: str | None = None  # None: the sandbox's user; "name", "uid" or "uid:gid"

    def check(self) -> SessionSpec:
        """Returns itself if every value is in bounds; raises InvalidRequest."""
        if os.path.basename(self.shell) not in SHELLS:
            raise InvalidRequest(
                f"shell: {self.shell[:80]!r} is none of {', '.join(sorted(SHELLS))}"
            )
        for what, value in (("shell", self.shell), ("cwd", self.cwd), ("user", self.user)):
            if value is not None and (
                "\x00" in value or not 0 < len(value) <= limits.PATH_BYTES_MAX
            ):
                raise InvalidRequest(f"{what} is empty, too long or holds a NUL")
        check_env(self.env)
        return self
