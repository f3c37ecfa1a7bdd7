"""Paths inside a sandbox that are covered from outside when it is made. No I/O."""

from __future__ import annotations

from skerry.errors import InvalidRequest

COVERS_MAX = 16  # of each kind (native/spawn/request.h)
PATH_BYTES_MAX = 1000
BYTES_MAX = 4096  # of all together
# What the sandbox itself needs, or what is covered already.
_TAKEN = ("/proc", "/sys", "/dev", "/run")


def check_covers(readonly: tuple[str, ...], hidden: tuple[str, ...]) -> None:
    """Raises InvalidRequest unless these can be made read-only and hidden in a new sandbox."""
    for what, paths in (("readonly", readonly), ("hidden", hidden)):
        if len(paths) > COVERS_MAX:
            raise InvalidRequest(f"{what}: {len(paths)} paths, at most {COVERS_MAX}")
        if len(set(paths)) != len(paths):
            raise InvalidRequest(f"{what}: a path is named twice")
        for path in paths:
            _check(what, path)
    if (
        sum(len(path.encode("utf-8", "surrogateescape")) for path in (*readonly, *hidden))
        > BYTES_MAX
    ):
        raise InvalidRequest(f"readonly and hidden: more than {BYTES_MAX} bytes together")
    for path in (*readonly, *hidden):
        if any(path.startswith(one + "/") for one in hidden) or (
            path in readonly and path in hidden
        ):
            raise InvalidRequest(f"{path[:200]!r} is hidden already")


def _check(what: str, path: str) -> None:
    shown = repr(path[:200])
    parts = path.split("/")[1:]
    if not path.startswith("/") or "\x00" in path or {"", ".", ".."} & set(parts):
        raise InvalidRequest(f"{what}: {shown} is no absolute path without '.' and '..'")
    if len(path.encode("utf-8", "surrogateescape")) > PATH_BYTES_MAX:
        raise InvalidRequest(f"{what}: {shown} is longer than {PATH_BYTES_MAX} bytes")
    if any(path == one or path.startswith(one + "/") for one in _TAKEN):
        raise InvalidRequest(f"{what}: {shown} belongs to the sandbox itself")
