"""CONNECT through the proxy: TLS to the name that was asked for, to checked addresses, or nothing."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from proxy_stand import WINDOW, server
from test_network_tls import hello, real_hello, sni

from skerry.network.gateway import Bounds
from skerry.network.tls import ALERT

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def connect_line(host: str, port: int) -> bytes:
    return b"CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % ((host.encode(), port) * 2)


async def echo(reader, writer) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


async def opened(stand, host: str, port: int):
    client = stand.connect()
    client.send(connect_line(host, port))
    assert await client.until(b"\r\n\r\n") == ESTABLISHED
    return client


async def test_bytes_pass_unchanged_both_ways_and_each_half_closes(make) -> None:
    async with server(echo) as port:
        stand = make(f"a.test:{port}")
        client = await opened(stand, "a.test", port)
        begin = real_hello("A.Test")
        client.send(begin[:20])
        client.send(begin[20:] + b"and more")
        client.send(bytes(range(256)) * 1000)
        client.end()
        assert await client.rest() == begin + b"and more" + bytes(range(256)) * 1000


async def test_hello_may_come_with_the_request(make) -> None:
    async with server(echo) as port:
        stand = make(f"a.test:{port}")
        client = stand.connect()
        begin = real_hello("a.test")
        client.send(connect_line("a.test", port) + begin)
        client.end()
        assert await client.rest() == ESTABLISHED + begin


SPOOFS = [
    real_hello("evil.org"),
    real_hello("a.test.evil.org"),
    real_hello(None),
    hello(sni(b"evil.org")),
    hello(sni(b"a.test", b"evil.org")),
    hello(sni(b"a.test"), sni(b"evil.org")),
    hello(sni(b"127.0.0.1")),
    hello(sni(b"a.test\0.evil.org")),
    b"GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n",
    b"SSH-2.0-x\r\n",
]


@pytest.mark.parametrize("first", SPOOFS)
async def test_other_server_than_asked_for_gets_not_one_byte(make, first) -> None:
    """A rule for one name opens that name only (report 63)."""
    got = []

    async def note(reader, writer) -> None:
        got.append(await reader.read())

    async with server(note) as port:
        stand = make(f"a.test:{port}")
        client = await opened(stand, "a.test", port)
        client.send(first)
        assert await client.until(ALERT) == ALERT
        client.end()
        await client.rest()
        await asyncio.gather(*stand.tasks)
    assert b"".join(got) == b""
    assert stand.last().verdict == "refused"
    assert stand.last().method == "CONNECT"


async def test_control_the_right_name_gets_through(make) -> None:
    got = []

    async def note(reader, writer) -> None:
        got.append(await reader.read(65_536))

    async with server(note) as port:
        stand = make(f"a.test:{port}")
        client = await opened(stand, "a.test", port)
        begin = real_hello("a.test")
        client.send(begin)
        await client.rest()
    assert got == [begin]


async def test_slow_reader_inside_stops_the_server(make) -> None:
    sent = 0

    async def flood(reader, writer) -> None:
        nonlocal sent
        await reader.read(65_536)
        while sent < 64 << 20:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    async with server(flood) as port:
        stand = make(f"a.test:{port}")
        client = await opened(stand, "a.test", port)
        client.send(real_hello("a.test"))
        await client.take()
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < 32 << 20
        assert client.unread_max <= WINDOW + 65_536
        client.reset()


async def test_tunnel_without_a_byte_is_closed_after_its_time(make) -> None:
    async with server(echo) as port:
        stand = make(f"a.test:{port}", bounds=Bounds(10, 16_384, 0.05))
        client = await opened(stand, "a.test", port)
        client.send(real_hello("a.test"))
        await client.rest()
        assert stand.gateway.view().open_connections == 0


async def test_real_tls_is_spoken_end_to_end(make, tmp_path) -> None:
    """The proxy holds no key: the client checks the server's own certificate."""
    key, certificate = await _certificate(tmp_path, "a.test")
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificate, key)

    async def shout(reader, writer) -> None:
        writer.write((await reader.readline()).upper())

    made = await asyncio.start_server(shout, "127.0.0.1", 0, ssl=server_side)
    async with made:
        port = made.sockets[0].getsockname()[1]
        stand = make(f"a.test:{port}")
        client = await opened(stand, "a.test", port)
        context = ssl.create_default_context(cafile=str(certificate))
        into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(into, out, server_hostname="a.test")

        async def step(call):
            while True:
                try:
                    result = call()
                except ssl.SSLWantReadError:
                    client.send(out.read())
                    into.write(await client.take())
                else:
                    client.send(out.read())
                    return result

        await step(tls.do_handshake)
        await step(lambda: tls.write(b"hello\n"))
        assert await step(lambda: tls.read(100)) == b"HELLO\n"
        client.reset()


async def _certificate(tmp_path, name: str):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    process = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-keyout", str(key), "-out", str(certificate), "-subj", f"/CN={name}"),
        *("-addext", f"subjectAltName=DNS:{name}"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    return key, certificate


# --- addresses


async def test_name_that_leads_to_a_private_address_is_refused(make) -> None:
    stand = make("evil.example", "a.test")
    for address in ("127.0.0.1", "10.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254"):
        stand.names = {"evil.example": [address], "a.test": ["169.254.169.254"]}
        stand.resolver._known.clear()
        answer = await stand.ask(connect_line("evil.example", 443))
        assert answer.startswith(b"HTTP/1.1 403 "), answer
        assert b"leads to an address that is not public\r\n" in answer  # what pip and curl show
        assert b"`private` or `addresses`" in answer
    answer = await stand.ask(connect_line("a.test", 443))  # which may be private, but not that
    assert b"link-local" in answer


async def test_control_operator_may_allow_a_private_address(make) -> None:
    async with server(echo) as port:
        stand = make(f"b.example:{port}", addresses={"b.example": ("127.0.0.1",)})
        client = await opened(stand, "b.example", port)
        client.reset()
        assert not stand.asked  # a pinned name is never looked up


async def test_star_leads_to_no_private_address_even_where_the_operator_allows_one(make) -> None:
    addresses = {"pinned.example": ("127.0.0.1",)}
    stand = make("*", addresses=addresses)
    for host in ("pinned.example", "a.test", "evil.example"):
        answer = await stand.ask(connect_line(host, 443))
        assert answer.startswith(b"HTTP/1.1 403 "), answer
        assert b"leads to an address that is not public\r\n" in answer
    async with server(echo) as port:
        named = make("*", f"pinned.example:{port}", f"a.test:{port}", addresses=addresses)
        for host in ("pinned.example", "a.test"):
            client = await opened(named, host, port)
            named.change("*", f"a.test:{port}")
            if host == "pinned.example":
                assert await client.rest() == b""
            client.reset()


async def test_rebinding_gains_nothing(make) -> None:
    """The addresses that were checked are those connected to, and each connection checks anew."""
    answers = iter([["203.0.114.1"], ["127.0.0.1"], ["127.0.0.1", "203.0.114.1"]])
    dialled = []

    async def no_connection(host, port, **_):
        dialled.append(host)
        raise ConnectionRefusedError(111, "Connection refused")

    stand = make("evil.example")
    stand.resolver._lookup = lambda host: _now(next(answers))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "open_connection", no_connection)
        for status in (b"502", b"403", b"502"):
            stand.resolver._known.clear()
            assert status in await stand.ask(connect_line("evil.example", 443))
    assert dialled == ["203.0.114.1", "203.0.114.1"]


async def _now(value):
    return value


async def test_nodes_own_port_is_never_reachable(make) -> None:
    async with server(echo) as port:
        stand = make(f"a.test:{port}", f"b.example:{port}", addresses={"b.example": ("127.0.0.1",)})
        stand.own = frozenset((port,))
        for name in ("a.test", "b.example"):
            answer = await stand.ask(connect_line(name, port))
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"the node's own service" in answer
        stand.own = frozenset()
        client = await opened(stand, "a.test", port)
        client.reset()


async def test_next_address_is_tried_when_one_refuses(make) -> None:
    async with server(echo) as port:
        stand = make(f"a.test:{port}")
        stand.names["a.test"] = ["127.0.0.2", "127.0.0.1"]  # the server is on one of them
        client = await opened(stand, "a.test", port)
        assert stand.last().address in {"127.0.0.1", "127.0.0.2"}
        client.reset()


async def test_one_lookup_serves_many_and_failures_are_asked_again(make) -> None:
    """No EAI_AGAIN under load (report 65)."""
    import socket

    tries = []

    async def flaky(host):
        tries.append(host)
        await asyncio.sleep(0)
        if len(tries) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return ["10.1.1.1"]

    stand = make("x.example")
    stand.resolver._lookup = flaky
    found = await asyncio.gather(*(stand.resolver.addresses("x.example") for _ in range(100)))
    assert len({str(one) for one in found}) == 1
    assert len(tries) == 3


async def test_lookup_that_fails_says_why(make) -> None:
    import socket

    async def unknown(host):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    stand = make("x.example")
    stand.resolver._lookup = unknown
    answer = await stand.ask(connect_line("x.example", 443))
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"Name or service not known" in answer
