"""Routes of files, trees, and what a sandbox wrote."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import msgspec

from skerry.errors import InvalidRequest
from skerry.node.node import Node
from skerry.node.server.bodies import COMMIT, FILE_OP
from skerry.node.server.exchange import Exchange
from skerry.spec.files import Change, FileInfo

BYTES = "application/octet-stream"
TAR = "application/x-tar"
SIZE_MAX = 1 << 62


async def read(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/files."""
    exchange.allow("path", "user", "offset", "length")
    sandbox = node.sandboxes.get(exchange.path("id"))
    offset = exchange.number("offset", 0, low=0, high=SIZE_MAX)
    length = exchange.number("length", -1, low=-1, high=SIZE_MAX)
    pieces = node.files.read(sandbox, _path(exchange), exchange.param("user"), offset, length)
    await _give(exchange, pieces, BYTES)


async def write(node: Node, exchange: Exchange) -> None:
    """PUT /v1/sandboxes/ID/files."""
    exchange.allow("path", "user", "mode", "parents", "append", "exclusive")
    sandbox = node.sandboxes.get(exchange.path("id"))
    info = await node.files.write(
        sandbox,
        _path(exchange),
        exchange.param("user"),
        exchange.chunks(),
        mode=_mode(exchange),
        parents=exchange.flag("parents"),
        append=exchange.flag("append"),
        exclusive=exchange.flag("exclusive"),
    )
    await exchange.reply(printable(info))


async def apply(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/files/op."""
    exchange.allow()
    sandbox = node.sandboxes.get(exchange.path("id"))
    infos = await node.files.apply(sandbox, await exchange.body(FILE_OP))
    await exchange.reply([printable(info) for info in infos])


async def tree_get(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/tree."""
    exchange.allow("path", "user")
    sandbox = node.sandboxes.get(exchange.path("id"))
    pieces = node.files.tree_get(sandbox, _path(exchange), exchange.param("user"))
    await _give(exchange, pieces, TAR)


async def tree_put(node: Node, exchange: Exchange) -> None:
    """PUT /v1/sandboxes/ID/tree."""
    exchange.allow("path", "user")
    sandbox = node.sandboxes.get(exchange.path("id"))
    user = exchange.param("user")
    await node.files.tree_put(sandbox, _path(exchange), user, exchange.chunks())
    await exchange.reply({})


async def diff(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/diff."""
    exchange.allow()
    body = await node.disk.diff(node.sandboxes.get(exchange.path("id")))
    changes = tuple(_printable_change(change) for change in body.changes)
    await exchange.reply(msgspec.structs.replace(body, changes=changes))


async def diff_tar(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/diff/tar."""
    exchange.allow("under")
    sandbox = node.sandboxes.get(exchange.path("id"))
    under = exchange.param("under") or "/"
    await _give(exchange, node.disk.diff_tar(sandbox, under), TAR)


async def commit(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/commit."""
    exchange.allow()
    sandbox = node.sandboxes.get(exchange.path("id"))
    await exchange.reply(await node.disk.commit(sandbox, await exchange.body(COMMIT)))


async def _give(exchange: Exchange, pieces: AsyncIterator[bytes], content_type: str) -> None:
    """Streams pieces. An error before the first is an answer; after it, the answer breaks off."""
    first = await anext(pieces, None)
    await exchange.open_stream(content_type)
    if first is not None:
        await exchange.write(first)
        async for piece in pieces:
            await exchange.write(piece)
    await exchange.close_stream()


def _path(exchange: Exchange) -> str:
    path = exchange.param("path")
    if path is None:
        raise InvalidRequest("query: path is missing")
    return path


def _mode(exchange: Exchange) -> int:
    text = exchange.param("mode")
    if text is None:
        return 0o644
    digits = text.removeprefix("0o")
    if not 1 <= len(digits) <= 5 or set(digits) - set("01234567"):
        raise InvalidRequest(f"query: mode={text[:40]!r} is not octal")
    return int(digits, 8)


def printable(info: FileInfo) -> FileInfo:
    """Returns the file with names that can be sent: bytes that are no UTF-8 become U+FFFD."""
    if info.name.isascii() and (info.target is None or info.target.isascii()):
        return info
    target = None if info.target is None else _text(info.target)
    return msgspec.structs.replace(info, name=_text(info.name), target=target)


def _printable_change(change: Change) -> Change:
    if change.path.isascii() and (change.target is None or change.target.isascii()):
        return change
    target = None if change.target is None else _text(change.target)
    return msgspec.structs.replace(change, path=_text(change.path), target=target)


def _text(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "replace")
