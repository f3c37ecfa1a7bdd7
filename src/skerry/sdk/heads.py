"""Where a node is, and what every request to it says in its head."""

from __future__ import annotations

from base64 import b64encode

from yarl import URL

from skerry.errors import InvalidRequest
from skerry.wire.http import MSGPACK


def node_of(base: str) -> URL:
    """Returns a node's address; InvalidRequest for what is none."""
    try:
        url = URL(base)
        if url.host and url.port:
            return url
    except ValueError:
        pass
    raise InvalidRequest(f"{base!r} is no node's address: write http://HOST:PORT")


def fixed_lines(url: URL, token: str | None) -> str:
    """Returns the lines that every request of our own has in its head; InvalidRequest for the token."""
    lines = f"Host: {url.host_port_subcomponent}\r\nAccept: {MSGPACK}\r\n"
    if token:
        if not token.isascii() or not token.isprintable():
            raise InvalidRequest("token: it holds what no header may hold, such as a line's end")
        lines += f"Authorization: Bearer {token}\r\n"
    elif url.user is not None:
        pair = f"{url.user}:{url.password or ''}".encode()
        lines += f"Authorization: Basic {b64encode(pair).decode()}\r\n"
    return lines
