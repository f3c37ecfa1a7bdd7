"""Routes of files, trees, and what a sandbox wrote."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

import msgspec

from skerry.errors import InvalidRequest, SkerryError
from skerry.guest.files import STALL_S
from skerry.node.life.commits import Commit
from skerry.node.node import Node
from skerry.node.server.bodies import COMMIT, FILE_OP
from skerry.node.server.exchange import Exchange
from skerry.spec.layers import LayerManifest
from skerry.wire.files import (
    FILES_STREAM,
    FileEvent,
    change_to_wire,
    event_to_wire,
    info_to_wire,
)
from skerry.wire.http import ErrorBody
from skerry.wire.pieces import END, PIECES, failed, head_of

BYTES = "application/octet-stream"
TAR = "application/x-tar"
SIZE_MAX = 1 << 62

_encode = msgspec.msgpack.Encoder().encode
_length = struct.Struct("<I").pack


async def read(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/files."""
    exchange.allow("path", "user", "offset", "length", "tail", "sparse", "op")
    sandbox = node.sandboxes.get(exchange.path("id"))
    offset = exchange.number("offset", 0, low=0, high=SIZE_MAX)
    length = exchange.number("length", -1, low=-1, high=SIZE_MAX)
    tail = exchange.number("tail", -1, low=0, high=SIZE_MAX)
    pieces = node.files.read(
        sandbox,
        _path(exchange),
        exchange.param("user"),
        offset,
        length,
        tail=None if tail < 0 else tail,
        sparse=exchange.flag("sparse"),
        op=exchange.param("op"),
    )
    await give(exchange, pieces, BYTES)


async def write(node: Node, exchange: Exchange) -> None:
    """PUT /v1/sandboxes/ID/files."""
    exchange.allow(
        "path", "user", "mode", "parents", "append", "exclusive", "offset", "sparse", "op"
    )
    sandbox = node.sandboxes.get(exchange.path("id"))
    path, user = _path(exchange), exchange.param("user")
    parents = exchange.flag("parents")
    offset = exchange.number("offset", -1, low=0, high=SIZE_MAX)
    if offset >= 0:
        info = await node.files.put(
            sandbox,
            path,
            user,
            exchange.chunks(),
            offset,
            parents=parents,
            op=exchange.param("op"),
        )
    else:
        info = await node.files.write(
            sandbox,
            path,
            user,
            exchange.chunks(),
            mode=_mode(exchange),
            parents=parents,
            append=exchange.flag("append"),
            exclusive=exchange.flag("exclusive"),
            sparse=exchange.flag("sparse"),
            op=exchange.param("op"),
        )
    await exchange.reply(info)


async def apply(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/files/op."""
    exchange.allow("op")
    sandbox = node.sandboxes.get(exchange.path("id"))
    what = await exchange.body(FILE_OP)
    await exchange.reply(await node.files.apply(sandbox, what, op=exchange.param("op")))


async def tree_get(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/tree."""
    exchange.allow("path", "user", "op")
    sandbox = node.sandboxes.get(exchange.path("id"))
    user, op = exchange.param("user"), exchange.param("op")
    pieces = node.files.tree_get(sandbox, _path(exchange), user, op=op)
    await give(exchange, pieces, TAR)


async def tree_put(node: Node, exchange: Exchange) -> None:
    """PUT /v1/sandboxes/ID/tree."""
    exchange.allow("path", "user", "op")
    sandbox = node.sandboxes.get(exchange.path("id"))
    user, op = exchange.param("user"), exchange.param("op")
    done = await node.files.tree_put(sandbox, _path(exchange), user, exchange.chunks(), op=op)
    await exchange.reply(done)


async def walk(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/files/walk."""
    exchange.allow("path", "user", "depth", "types", "glob", "op")
    sandbox = node.sandboxes.get(exchange.path("id"))
    depth = exchange.number("depth", -1, low=1, high=1 << 20)
    found = node.files.walk(
        sandbox,
        _path(exchange),
        exchange.param("user"),
        depth=None if depth < 0 else depth,
        types=exchange.param("types") or "",
        glob=exchange.name_param("glob") or "",
        op=exchange.param("op"),
    )

    async def events() -> AsyncIterator[bytes]:
        async with aclosing(found):
            async for entries in found:
                yield frame(FileEvent(entries=tuple(info_to_wire(info) for info in entries)))

    await _give_events(exchange, events())


async def watch(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/files/watch."""
    exchange.allow("path", "user", "recursive")
    sandbox = node.sandboxes.get(exchange.path("id"))
    happened = node.files.watch(
        sandbox,
        _path(exchange),
        exchange.param("user"),
        recursive=exchange.flag("recursive"),
    )

    async def events() -> AsyncIterator[bytes]:
        async with aclosing(happened):
            async for event in happened:
                yield frame(FileEvent(watch=event_to_wire(event)))

    await _give_events(exchange, events())


async def usage(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/files/usage."""
    exchange.allow("path", "user", "op")
    sandbox = node.sandboxes.get(exchange.path("id"))
    user, op = exchange.param("user"), exchange.param("op")
    found = node.files.usage(sandbox, _path(exchange), user, op=op)
    await exchange.reply(await exchange.while_there(found))


async def diff(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/diff."""
    exchange.allow("op")
    sandbox = node.sandboxes.get(exchange.path("id"))
    body = await node.files.diff(sandbox, op=exchange.param("op"))
    changes = tuple(map(change_to_wire, body.changes))
    await exchange.reply(msgspec.structs.replace(body, changes=changes))


async def diff_tar(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/diff/tar."""
    exchange.allow("under", "op")
    sandbox = node.sandboxes.get(exchange.path("id"))
    under = exchange.name_param("under") or "/"
    pieces = node.files.diff_tar(sandbox, under, op=exchange.param("op"))
    await give(exchange, pieces, TAR)


async def commit(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/commit."""
    exchange.allow()
    sandbox = node.sandboxes.get(exchange.path("id"))
    commit = await node.commits.begin(sandbox, await exchange.body(COMMIT))
    await exchange.reply(await exchange.while_there(_layer(commit)))


async def _layer(commit: Commit) -> LayerManifest:
    return await asyncio.shield(commit.layer)


def frame(event: FileEvent) -> bytes:
    """Returns one event as it stands in a stream."""
    data = _encode(event)
    return _length(len(data)) + data


async def give(exchange: Exchange, pieces: AsyncIterator[bytes], content_type: str) -> None:
    """Streams pieces. An error before the first is an answer; after it, the answer breaks off.

    Who accepts PIECES is told the error then, too.

    When the client goes away, so does the work: the iterator is closed where it stands.
    """
    if exchange.header(b"accept") != PIECES:
        await exchange.while_there(_send(exchange, pieces, content_type))
        await exchange.close_stream()
        return
    last = END
    try:
        await exchange.while_there(_send(exchange, pieces, PIECES, heads=True))
    except SkerryError as error:
        if not exchange.started:
            raise
        last = failed(error)
    await exchange.write(last)
    await exchange.close_stream()


async def _give_events(exchange: Exchange, events: AsyncIterator[bytes]) -> None:
    """The same for events, which end with `done`, or with the error that came after the first."""
    last = FileEvent(done=True)
    try:
        await exchange.while_there(_send(exchange, events, FILES_STREAM))
    except SkerryError as error:
        if not exchange.started:
            raise
        last = FileEvent(error=ErrorBody.of(error))
    await exchange.write(frame(last))
    await exchange.close_stream()


async def _send(
    exchange: Exchange, pieces: AsyncIterator[bytes], content_type: str, *, heads: bool = False
) -> None:
    """Opens the stream once there is a first piece, or none at all; a client may not stand still."""
    async with aclosing(cast("AsyncGenerator[bytes]", pieces)):
        piece = await anext(pieces, None)
        await exchange.open_stream(content_type)
        while piece is not None:
            if heads and piece:
                await exchange.send_within(STALL_S, head_of(piece), piece)
            elif piece:
                await exchange.send_within(STALL_S, piece)
            piece = await anext(pieces, None)


def _path(exchange: Exchange) -> str:
    path = exchange.name_param("path")
    if path is None:
        raise InvalidRequest("query: path is missing")
    return path


def _mode(exchange: Exchange) -> int | None:
    text = exchange.param("mode")
    if text is None:
        return None
    digits = text.removeprefix("0o")
    if not 1 <= len(digits) <= 5 or set(digits) - set("01234567"):
        raise InvalidRequest(f"query: mode={text[:40]!r} is not octal")
    return int(digits, 8)
