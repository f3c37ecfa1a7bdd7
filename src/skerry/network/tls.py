"""The beginning of a TLS connection: whom its client asks for. Pure.

RFC 8446 section 4 (ClientHello), RFC 6066 section 3 (server_name). Anything that is not exactly one
name is refused: a server might choose the other one.
"""

from __future__ import annotations

HELLO_BYTES_MAX = 65_536  # of the records that carry it
ALERT = (
    b"\x15\x03\x03\x00\x02\x02\x31"  # fatal, access_denied: what clients print is near the truth
)
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME, _ENCRYPTED_HELLO = 0, 0xFE0D


class NotTls(ValueError):
    """The bytes are no ClientHello that names one server; the text says why."""


def server_name(data: bytes) -> str | None:
    """Returns the name that a ClientHello asks for, None if more bytes are needed.

    Raises NotTls for anything else, and for a hello whose real name is encrypted.
    """
    hello = _handshake(data)
    return None if hello is None else _name(hello)


def _handshake(data: bytes) -> bytes | None:
    """Returns the first handshake message, put together from its records."""
    message = bytearray()
    at = 0
    while True:
        head = data[at : at + 5]
        if head and (head[0] != _HANDSHAKE or head[1:2] not in (b"", b"\x03")):
            raise NotTls("it does not begin with a TLS handshake")
        if len(head) == 5:
            length = int.from_bytes(head[3:5], "big")
            if not 0 < length <= 16_640:
                raise NotTls(f"a TLS record of {length} bytes")
            message += data[at + 5 : at + 5 + length]
            at += 5 + length
        if len(message) >= 4:
            if message[0] != _CLIENT_HELLO:
                raise NotTls("it does not begin with a ClientHello")
            size = int.from_bytes(message[1:4], "big")
            if size > HELLO_BYTES_MAX:
                raise NotTls(f"a ClientHello of {size} bytes")
            if len(message) >= 4 + size:
                return bytes(message[4 : 4 + size])
        if len(head) < 5 or at > len(data):
            if len(data) > HELLO_BYTES_MAX:
                raise NotTls(f"no ClientHello within {HELLO_BYTES_MAX} bytes")
            return None


class _Cursor:
    """Reads vectors; NotTls where they run past the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise NotTls("a field of the ClientHello runs past its end")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        return self.take(self.number(size))

    @property
    def left(self) -> bool:
        return self.at < len(self.data)


def _name(hello: bytes) -> str:
    cursor = _Cursor(hello)
    cursor.take(2 + 32)  # version, random
    cursor.vector(1)  # session id
    cursor.vector(2)  # cipher suites
    cursor.vector(1)  # compression methods
    extensions = _Cursor(cursor.vector(2) if cursor.left else b"")
    if cursor.left:
        raise NotTls("the ClientHello goes on behind its extensions")
    names = []
    while extensions.left:
        kind, body = extensions.number(2), extensions.vector(2)
        if kind == _ENCRYPTED_HELLO:
            raise NotTls("its ClientHello is encrypted (ECH), so its server cannot be checked")
        if kind == _SERVER_NAME:
            names.append(body)
    if len(names) != 1:
        raise NotTls("it names no server (no SNI)" if not names else "it names servers twice")
    listed = _Cursor(names[0])
    entries = _Cursor(listed.vector(2))
    kind, name = entries.number(1), entries.vector(2)
    if kind != 0 or entries.left or listed.left:
        raise NotTls("it names more than one server")
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise NotTls("the name of its server is not ASCII") from None
