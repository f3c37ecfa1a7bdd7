"""What a client says about the address of a node at which there is none."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import msgspec
import pytest

from skerry.aio import connect
from skerry.errors import InvalidRequest, Unavailable
from skerry.wire.http import Health


async def refused(url: str) -> str:
    with pytest.raises(Unavailable) as error:
        async with connect(url):
            pass
    return error.value.message


async def test_socket_that_is_not_there_or_whose_node_has_ended_says_what_to_do(
    tmp_path: Path,
) -> None:
    path = tmp_path / "node.sock"
    for _ in range(2):
        said = await refused(f"unix://{path}")
        assert str(path) in said
        assert "an embedded one ends with its last client" in said
        assert "skerry up" in said
        with socket.socket(socket.AF_UNIX) as left:  # then as one that nobody listens at
            if not path.exists():
                left.bind(str(path))


async def test_node_that_comes_while_a_client_waits_is_found(tmp_path: Path) -> None:
    path = tmp_path / "node.sock"
    health = msgspec.msgpack.encode(
        Health(node="abcde", version="1", epoch=1, pid=1, sandboxes=0, uptime_s=0.0)
    )

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(health)
                writer.write(head + health)
        writer.close()

    async def later() -> asyncio.Server:
        await asyncio.sleep(0.3)
        return await asyncio.start_unix_server(answer, path)

    starting = asyncio.create_task(later())
    async with connect(f"unix://{path}", wait=30.0) as client:
        assert (await client.health()).node == "abcde"
    (await starting).close()


async def test_what_is_no_socket_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "That is no socket" in await refused(f"unix://{tmp_path}/file")
    assert "That is no socket" in await refused(f"unix://{tmp_path}")


async def test_directory_of_a_node_leads_to_its_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "node.sock"))
    assert f"write unix://{tmp_path}/node.sock" in await refused(f"unix://{tmp_path}")


@pytest.mark.parametrize("url", ["unix://", "unix://relative/node.sock", "unix:///a\0b"])
async def test_path_that_is_none_is_the_callers_fault(url: str) -> None:
    with pytest.raises(InvalidRequest, match="no absolute path"):
        async with connect(url):
            pass
