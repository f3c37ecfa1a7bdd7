"""Plain HTTP through the proxy: what goes on, what is refused, and that nothing is held back."""

from __future__ import annotations

import asyncio

import pytest
from proxy_stand import echo_head, server

from skerry.network.gateway import Bounds


async def test_request_is_written_anew_for_the_server(make) -> None:
    async with server(echo_head) as port:
        stand = make(f"a.test:{port}")
        answer = await stand.ask(
            b"GET http://A.test.:%d/x?y=1 HTTP/1.1\r\nHost: a.TEST:%d\r\nAccept: */*\r\n"
            b"Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\nTE: trailers\r\n"
            b"Connection: X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\n\r\n" % (port, port)
        )
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    head = answer.partition(b"\r\n\r\n")[2].lower()
    assert head.startswith(b"get /x?y=1 http/1.1\r\nhost: a.test:%d\r\n" % port)
    assert b"x-kept: 2" in head
    for gone in (b"proxy-", b"x-hop", b"te:"):
        assert gone not in head
    decision = stand.last()
    assert (decision.verdict, decision.why, decision.address) == (
        "allowed",
        f"a.test:{port}",
        "127.0.0.1",
    )


async def test_each_request_of_a_kept_connection_is_decided_anew(make) -> None:
    async with server(echo_head) as port:
        stand = make(f"a.test:{port}")
        client = stand.connect()
        line = b"GET http://%s:%d/ HTTP/1.1\r\nHost: %s:%d\r\n\r\n"
        for _ in range(2):
            client.send(line % (b"a.test", port, b"a.test", port))
            await client.until(b"Connection: close\r\n\r\n")  # the end of what the server echoes
        client.send(line % (b"b.test", port, b"b.test", port))
        assert b"HTTP/1.1 403 " in await client.rest()
    assert [decision.verdict for decision in stand.decisions.last()] == [
        "allowed",
        "allowed",
        "refused",
    ]
    assert "b.test" not in stand.asked


async def test_pipelined_requests_are_answered_in_their_order(make) -> None:
    async with server(echo_head) as port:
        stand = make(f"a.test:{port}")
        line = b"GET http://a.test:%d/%d HTTP/1.1\r\nHost: a.test:%d\r\n\r\n"
        answer = await stand.ask(b"".join(line % (port, n, port) for n in range(20)))
    places = [answer.find(b"GET /%d HTTP" % n) for n in range(20)]
    assert -1 not in places
    assert places == sorted(places)


HOSTS = [
    b"GET http://evil.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n",
    b"GET http://a.test.evil.org/ HTTP/1.1\r\nHost: a.test.evil.org\r\n\r\n",
    b"GET http://a.test:81/ HTTP/1.1\r\nHost: a.test:81\r\n\r\n",
    b"CONNECT evil.org:443 HTTP/1.1\r\nHost: evil.org:443\r\n\r\n",
    b"CONNECT a.test:22 HTTP/1.1\r\nHost: a.test:22\r\n\r\n",
]


@pytest.mark.parametrize("request_", HOSTS)
async def test_name_that_no_entry_allows_is_refused_and_never_looked_up(make, request_) -> None:
    stand = make("a.test", "pypi")
    answer = await stand.ask(request_)
    assert answer.startswith(b"HTTP/1.1 403 Blocked by the network policy of this sandbox: ")
    assert b"adds an entry such as" in answer
    assert stand.last().verdict == "refused"
    assert not stand.asked


POST = b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\n"
MALFORMED = [
    (b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET http://user@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET http://a.test@evil.org/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET http://a.test\\@evil.org/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET http://a.test/ HTTP/1.1\r\nHost: evil.org\r\n\r\n", 400),
    (b"GET http://a.test/ HTTP/1.1\r\nHost: a.test:81\r\n\r\n", 400),
    (b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: evil.org\r\n\r\n", 400),
    (b"GET http://a.test/ HTTP/1.1\r\n\r\n", 400),
    (b"GET http://a.test/#f HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET http://a.test:/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET http:/// HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    (b"GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\n\r\n", 400),
    (b"GET http://[::1]/ HTTP/1.1\r\nHost: [::1]\r\n\r\n", 400),
    (b"GET http://0x7f.1/ HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n", 400),
    (b"GET http://a.test/x y HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET http://b\xc3\xbccher.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n evil: folded\r\nX : y\r\n\r\n", 400),
    (b"CONNECT a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
    (b"CONNECT 127.0.0.1:443 HTTP/1.1\r\nHost: 127.0.0.1:443\r\n\r\n", 400),
    (b"CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n\r\n", 400),
    (b"CONNECT a.test:443 HTTP/1.1\r\nHost: evil.org:443\r\n\r\n", 400),
    (b"CONNECT x@a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", 400),
    (b"CONNECT http://a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n", 400),
    (
        POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    (
        POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        400,
    ),
    (b"POST http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    (b"\x16\x03\x01\x02\x00\x01", 400),
    (b"SSH-2.0-OpenSSH_9\r\n\r\n", 400),
    (b"GET http://a.test/" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: a.test\r\n\r\n", 431),
    (b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nX: " + b"y" * 20_000, 431),
]


@pytest.mark.parametrize(("request_", "status"), MALFORMED)
async def test_request_that_can_be_read_in_two_ways_is_refused(make, request_, status) -> None:
    stand = make("a.test")
    answer = await stand.ask(request_)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert not stand.asked
    assert stand.last().verdict == "refused"


async def test_smuggled_request_reaches_the_server_as_a_body_or_not_at_all(make) -> None:
    """What one parser takes for a second request, the server must not see as one."""
    seen = []

    async def count(reader, writer) -> None:
        seen.append(await reader.read(65_536))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    hidden = b"GET http://evil.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n"
    async with server(count) as port:
        stand = make(f"a.test:{port}")
        head = b"POST http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\n" % (port, port)
        await stand.ask(head + b"Content-Length: 5\r\n\r\nabcde" + hidden)
        await stand.ask(
            head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n" + hidden
        )
        await stand.ask(head + b"Content-Length: +5\r\n\r\nabcde" + hidden)
        await stand.ask(head + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + hidden)
    assert not [data for data in seen if b"evil" in data]
    assert len(seen) <= 2
    assert {d.host for d in stand.decisions.last() if d.verdict == "allowed"} == {"a.test"}


async def test_server_that_cannot_be_reached_is_a_502_with_the_reason(make) -> None:
    async with server(echo_head) as port:
        pass
    stand = make(f"a.test:{port}", "b.test")
    answer = await stand.ask(
        b"GET http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\n\r\n" % (port, port)
    )
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"Connect" in answer or b"refused" in answer
    assert stand.last().verdict == "failed"
    stand.names["b.test"] = []
    answer = await stand.ask(b"GET http://b.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n")
    assert b"502" in answer
    assert b"no address" in answer


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
    ],
)
async def test_answer_that_is_none_is_a_502(make, reply) -> None:
    async def broken(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)

    async with server(broken) as port:
        stand = make(f"a.test:{port}")
        answer = await stand.ask(
            b"GET http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\n\r\n" % (port, port)
        )
    assert answer.startswith(b"HTTP/1.1 502 "), answer


async def test_answer_that_breaks_off_is_never_whole(make) -> None:
    async def short(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async with server(short) as port:
        stand = make(f"a.test:{port}")
        client = stand.connect()
        client.send(b"GET http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\n\r\n" % (port, port))
        answer = await client.rest()
        assert b"half" in answer
        assert client.was_reset.is_set()
        assert not client.ended
    assert stand.last().verdict == "failed"


async def test_events_pass_one_by_one_as_they_come(make) -> None:
    """A stream of events is not held back (report 66)."""
    told = asyncio.Event()

    async def events(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(5):
            writer.write(b"data: %d\n\n" % number)
            await told.wait()
            told.clear()

    async with server(events) as port:
        stand = make(f"a.test:{port}")
        client = stand.connect()
        client.send(b"GET http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\n\r\n" % (port, port))
        for number in range(5):
            await client.until(b"data: %d\n\n" % number)  # before the server says the next
            told.set()
        assert b"0\r\n\r\n" in await client.until(b"0\r\n\r\n")


async def test_large_bodies_flow_with_bounded_memory_both_ways(make) -> None:
    size = 32 << 20

    async def big(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        while got < size:
            got += len(await reader.read(1 << 16))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 16):
            writer.write(bytes(1 << 16))
            await writer.drain()

    async with server(big) as port:
        stand = make(f"a.test:{port}")
        client = stand.connect()
        client.send(
            b"POST http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\nContent-Length: %d\r\n\r\n"
            % (port, port, size)
        )
        for _ in range(size >> 16):
            client.send(bytes(1 << 16))
        total = 0
        while total < size:
            total += len(await client.take())
    assert client.unread_max < 1 << 20


async def test_answer_may_come_before_the_request_is_whole(make) -> None:
    async def early(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too large\r\nContent-Length: 2\r\n\r\nno")

    async with server(early) as port:
        stand = make(f"a.test:{port}")
        client = stand.connect()
        client.send(
            b"POST http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\nContent-Length: 999\r\n\r\nab"
            % (port, port)
        )
        assert b"HTTP/1.1 413" in await client.until(b"\r\n\r\nno")
        client.end()
        await client.rest()


async def test_head_and_informational_answers_pass(make) -> None:
    async def informed(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n")
        writer.write(b"Content-Length: 7\r\n\r\n")

    async with server(informed) as port:
        stand = make(f"a.test:{port}")
        answer = await stand.ask(
            b"HEAD http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\n\r\n" % (port, port)
        )
    assert answer.startswith(b"HTTP/1.1 103 ")
    assert b"HTTP/1.1 200 OK" in answer
    assert b"7\r\n" in answer


async def test_more_connections_than_allowed_are_answered_at_once(make) -> None:
    stand = make("a.test", bounds=Bounds(2, 16_384, 30.0))
    held = [stand.connect() for _ in range(2)]
    await asyncio.sleep(0)
    answer = await stand.ask(b"")
    assert answer.startswith(b"HTTP/1.1 503 ")
    for client in held:
        client.end()
        assert await client.rest() == b""
    assert stand.gateway.view().open_connections == 0


async def test_connections_of_all_sandboxes_are_bounded_together(make) -> None:
    stand = make("a.test")
    stand.places.total_max = 1
    held = stand.connect()
    await asyncio.sleep(0)
    answer = await stand.ask(b"")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"all sandboxes" in answer
    held.end()
    await held.rest()
    assert stand.places.taken == 0
    assert (await stand.ask(b"")) == b""


async def test_one_sandbox_has_few_names_looked_up_at_once(make) -> None:
    """A wildcard over a slow name server takes no other sandbox's turn."""
    stand = make("*.slow.test")
    asked, go = [], asyncio.Event()

    async def slow(host):
        asked.append(host)
        await go.wait()
        return []

    stand.resolver._lookup = slow
    line = b"GET http://n%d.slow.test/ HTTP/1.1\r\nHost: n%d.slow.test\r\n\r\n"
    tasks = [asyncio.ensure_future(stand.ask(line % (n, n))) for n in range(20)]
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(asked) == 4
    go.set()
    assert all(b" 502 " in answer for answer in await asyncio.gather(*tasks))
    assert len(asked) == 20


async def test_silent_connection_is_closed_after_its_time(make, monkeypatch) -> None:
    from skerry.network import gateway

    monkeypatch.setattr(gateway, "HEAD_S", 0.01)
    stand = make("a.test")
    client = stand.connect()
    client.send(b"GET http://a.test/ HTT")
    assert await client.rest() == b""
    assert stand.gateway.view().open_connections == 0


async def test_policy_change_cuts_what_is_no_longer_allowed_and_nothing_else(make) -> None:
    async def endless(reader, writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nbegin")
        await asyncio.Event().wait()

    async with server(endless) as port:
        stand = make(f"a.test:{port}", f"b.test:{port}")
        clients = {}
        for name in (b"a.test", b"b.test"):
            clients[name] = stand.connect()
            clients[name].send(
                b"GET http://%s:%d/ HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (name, port, name, port)
            )
            await clients[name].until(b"begin")
        stand.change(f"b.test:{port}")
        await asyncio.wait_for(clients[b"a.test"].was_reset.wait(), 5)
        assert not clients[b"b.test"].was_reset.is_set()
        assert [d.method for d in stand.decisions.last()] == ["GET", "GET", "CUT"]
        answer = await stand.ask(
            b"GET http://a.test:%d/ HTTP/1.1\r\nHost: a.test:%d\r\n\r\n" % (port, port)
        )
        assert b" 403 " in answer
        stand.change()
        await asyncio.wait_for(clients[b"b.test"].was_reset.wait(), 5)


async def test_log_is_bounded_and_the_counts_are_not(make, caplog) -> None:
    stand = make("a.test")
    for _ in range(300):
        await stand.ask(b"GET http://evil.org/ HTTP/1.1\r\nHost: evil.org\r\n\r\n")
    assert stand.decisions.totals().refused == 300
    assert len(stand.decisions.last()) == 100
    assert len([r for r in caplog.records if r.name == "skerry.network"]) <= 101
    assert '"verdict":"refused"' in caplog.text
