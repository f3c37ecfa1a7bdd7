"""ClientHellos: real ones in every cut, and those that lie."""

from __future__ import annotations

import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.network.tls import HELLO_BYTES_MAX, NotTls, server_name


def real_hello(name: str | None) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(into, out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size, "big") + data


def sni(*names: bytes, kind: int = 0) -> bytes:
    entries = b"".join(bytes((kind,)) + vector(2, name) for name in names)
    return struct.pack(">H", 0) + vector(2, vector(2, entries))


def hello(*extensions: bytes, kind: int = 1, tail: bytes = b"") -> bytes:
    body = b"\x03\x03" + bytes(32) + vector(1, b"") + vector(2, b"\x13\x01") + vector(1, b"\0")
    body += vector(2, b"".join(extensions)) + tail
    message = bytes((kind,)) + vector(3, body)
    return b"\x16\x03\x01" + vector(2, message)


def records(data: bytes, size: int) -> bytes:
    """The same handshake in records of a given size."""
    message = data[5:]
    return b"".join(
        b"\x16\x03\x01" + vector(2, message[at : at + size]) for at in range(0, len(message), size)
    )


def test_real_hello_names_its_server() -> None:
    assert server_name(real_hello("index.org")) == "index.org"
    with pytest.raises(NotTls, match="no SNI"):
        server_name(real_hello(None))


def test_every_cut_of_a_hello_asks_for_more() -> None:
    data = real_hello("files.example.org")
    for end in range(len(data)):
        assert server_name(data[:end]) is None
    assert server_name(data + b"more") == "files.example.org"


@pytest.mark.parametrize("size", [1, 3, 100, 16_000])
def test_hello_cut_into_records_is_put_together(size: int) -> None:
    data = records(real_hello("a.example.org"), size)
    assert server_name(data) == "a.example.org"
    for end in range(0, len(data), 7):
        assert server_name(data[:end]) is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "TLS handshake"),
        (b"SSH-2.0-x", "TLS handshake"),
        (b"\x16\x02", "TLS handshake"),
        (b"\x17\x03\x03\x00\x01x", "TLS handshake"),
        (b"\x16\x03\x01\x00\x00", "record of 0"),
        (b"\x16\x03\x01\xff\xff", "record of 65535"),
        (hello(sni(b"a.org"), kind=2), "ClientHello"),
        (hello(), "no SNI"),
        (hello(sni(b"a.org"), sni(b"b.org")), "twice"),
        (hello(sni(b"a.org", b"b.org")), "more than one"),
        (hello(sni(b"a.org", kind=1)), "more than one"),
        (hello(sni(b"\xff.org")), "ASCII"),
        (hello(sni(b"a.org"), struct.pack(">HH", 0xFE0D, 0)), "ECH"),
        (hello(sni(b"a.org"), tail=b"x"), "goes on"),
        (hello(struct.pack(">HH", 0, 9) + b"x"), "runs past"),
        (b"\x16\x03\x01\x00\x04\x01\xff\xff\xff", "of 16777215 bytes"),
    ],
)
def test_what_is_no_plain_hello_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(NotTls, match=why):
        server_name(data)


def test_hello_without_end_is_given_up() -> None:
    data = b"\x16\x03\x01" + vector(2, b"\x01\x00\xff\xf0" + bytes(16_000))
    data += (b"\x16\x03\x01" + vector(2, b"\0")) * (HELLO_BYTES_MAX // 6)
    with pytest.raises(NotTls, match="within"):
        server_name(data)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    for text in (data, b"\x16\x03\x01" + vector(2, data or b"\0"), hello(data)):
        try:
            server_name(text)
        except NotTls:
            continue
