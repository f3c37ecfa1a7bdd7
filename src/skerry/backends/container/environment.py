"""What every command of a container gets in its environment, unless the sandbox says otherwise.

HOME, USER and LOGNAME are the agent's to set: they depend on the user of the command.
"""

from __future__ import annotations

DEFAULTS = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    # Ids at or above 65,536 cannot be given to files inside; archives with such ids still unpack.
    "TAR_OPTIONS": "--no-same-owner",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # A question on a terminal that nobody watches would hang.
    "GIT_TERMINAL_PROMPT": "0",
}


def environment(asked: dict[str, str]) -> tuple[bytes, ...]:
    """Returns "K=V" entries, the sandbox's own above the defaults."""
    merged = DEFAULTS | asked
    return tuple(
        f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in merged.items()
    )
