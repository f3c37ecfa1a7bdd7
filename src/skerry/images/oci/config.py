"""How to run in an image: from its config to what sandboxes take as defaults, and back.

What an image says is a default only, so what is impossible here is left out with a note and does
not make the image unusable.
"""

from __future__ import annotations

import posixpath

from skerry.errors import InvalidRequest
from skerry.images.oci.model import Config, Platform, Rootfs, RunConfig
from skerry.images.scratch import Spool
from skerry.images.tree.entry import PATH_BYTES_MAX, Node, make_directory
from skerry.images.tree.merge import Collapse
from skerry.images.tree.notes import Notes
from skerry.spec.files import FileType
from skerry.spec.layers import ImageConfig
from skerry.spec.sandbox import check_env

_LABELS_BYTES_MAX = 64 << 10
_WORDS_BYTES_MAX = 64 << 10
_USER_BYTES_MAX = 256
_DATABASE_BYTES_MAX = 1 << 20


def read_config(config: Config, layers: Collapse, spool: Spool, notes: Notes) -> ImageConfig:
    """Returns what the image says. A working directory that it lacks is made in the top layer."""
    run = config.config or RunConfig()
    workdir = _workdir(run.working_dir, layers, notes)
    return ImageConfig(
        env=_env(run.env or [], notes),
        workdir=workdir,
        user=_user(run.user or "", layers, spool, notes),
        entrypoint=_words(run.entrypoint, "entry point", notes),
        cmd=_words(run.cmd, "command", notes),
        labels=_labels(run.labels or {}, notes),
    )


def write_config(config: ImageConfig, platform: Platform, diff_ids: list[str]) -> Config:
    """Returns the config of an image that says the same."""
    return Config(
        rootfs=Rootfs(diff_ids),
        architecture=platform.architecture,
        os=platform.os,
        variant=platform.variant,
        config=RunConfig(
            env=[f"{name}={value}" for name, value in sorted(config.env.items())] or None,
            entrypoint=list(config.entrypoint) or None,
            cmd=list(config.cmd) or None,
            working_dir=config.workdir,
            user=config.user,
            labels=dict(sorted(config.labels.items())) or None,
        ),
    )


def _env(lines: list[str], notes: Notes) -> dict[str, str]:
    env: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition("=")
        try:
            check_env({**env, name: value})
        except InvalidRequest:
            notes.add("environment variables of the image dropped", name[:80].encode())
        else:
            env[name] = value
    return env


def _words(words: list[str] | None, what: str, notes: Notes) -> tuple[str, ...]:
    taken = tuple(words or ())
    if sum(map(len, taken)) > _WORDS_BYTES_MAX or any("\0" in word for word in taken):
        notes.add(f"the image's {what} dropped: too long, or with a NUL", b"")
        return ()
    return taken


def _labels(labels: dict[str, str], notes: Notes) -> dict[str, str]:
    kept: dict[str, str] = {}
    left = _LABELS_BYTES_MAX
    for name, value in sorted(labels.items()):
        left -= len(name) + len(value)
        if left < 0:
            notes.add("labels of the image dropped", name[:80].encode())
        else:
            kept[name] = value
    return kept


def _workdir(text: str | None, layers: Collapse, notes: Notes) -> str | None:
    if not text:
        return None
    path = posixpath.normpath("/" + text)
    path = "/" + path.lstrip("/")
    raw = path.encode("utf-8", "surrogateescape").strip(b"/")
    parts = raw.split(b"/") if raw else []
    if b"\0" in raw or len(raw) > PATH_BYTES_MAX or any(len(part) > 255 for part in parts):
        notes.add("the image's working directory dropped", raw[:80])
        return None
    _make_directory(parts, layers)
    return path


def _make_directory(parts: list[bytes], layers: Collapse) -> None:
    """Makes what is missing of a path, as docker does at a start; a link on the way is left alone."""
    for end in range(1, len(parts) + 1):
        path = b"/".join(parts[:end])
        there = layers.find(path)
        if there is None:
            layers.put_on_top(path, make_directory())
        elif there.children is None:
            return


def _user(text: str, layers: Collapse, spool: Spool, notes: Notes) -> str | None:
    """Returns a user as commands take it: a name alone, a number, or two numbers."""
    if not text:
        return None
    user, colon, group = text.partition(":")
    if not user or "\0" in text or len(text.encode()) > _USER_BYTES_MAX:
        notes.add("the image's user dropped", text[:80].encode())
        return None
    if not colon or not group:
        return user
    uid = user if user.isdecimal() else _number(layers, spool, b"etc/passwd", user)
    gid = group if group.isdecimal() else _number(layers, spool, b"etc/group", group)
    if uid is None or gid is None:
        notes.add("the image's group dropped: it does not say its number", text[:80].encode())
        return user
    return f"{uid}:{gid}"


def _number(layers: Collapse, spool: Spool, path: bytes, name: str) -> str | None:
    """Returns the number that a database of users or groups gives a name."""
    node: Node | None = layers.find(path)
    if node is None or node.type is not FileType.FILE or node.content is None:
        return None
    if node.content.size > _DATABASE_BYTES_MAX:
        return None
    for line in b"".join(spool.read(node.content)).decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[0] == name and fields[2].isdecimal():
            return fields[2]
    return None
