"""Attempts from inside to get past the proxy, each with a control that gets through."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from live_node import LiveNode

pytestmark = pytest.mark.root

TOKEN = "0123456789abcdef"

# Speaks to the proxy byte by byte: "req" is sent, then "after" once something came back.
RAW = """
import socket, sys, json
port, request, after = int(sys.argv[1]), sys.argv[2], sys.argv[3]
s = socket.create_connection(("127.0.0.1", port), timeout=15)
s.sendall(request.encode("latin-1").decode("unicode_escape").encode("latin-1"))
first = s.recv(65536)
rest = b""
if after and b" 200 " in first:
    s.sendall(after.encode("latin-1").decode("unicode_escape").encode("latin-1"))
try:
    while d := s.recv(65536): rest += d
except OSError as e:
    rest += type(e).__name__.encode()
print(json.dumps([first.decode("latin-1"), rest.decode("latin-1")]))
"""

# A TLS client that asks the proxy for one name and the server for another.
SNI = """
import socket, ssl, sys
port, asked, said, target = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
s = socket.create_connection(("127.0.0.1", port), timeout=15)
s.sendall(f"CONNECT {asked}:{target} HTTP/1.1\\r\\nHost: {asked}:{target}\\r\\n\\r\\n".encode())
print(s.recv(4096).split(b"\\r\\n")[0].decode())
c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
try:
    c.wrap_socket(s, server_hostname=said).sendall(b"x"); print("through")
except (ssl.SSLError, OSError) as e:
    print("stopped", e)
"""


class Witness:
    """A server on the host's loopback that remembers what reached it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self.server.accept()[0]
                with client, contextlib.suppress(OSError):
                    client.settimeout(5)
                    self.heard.append(client.recv(65_536))
                    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nreached")

    def __enter__(self) -> Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self._thread.join()


@pytest.fixture(scope="module")
def witness():
    with Witness() as made:
        yield made


@pytest.fixture(scope="module")
def node(layer_store):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        api = probe.getsockname()[1]
    options = f"""
tcp = "127.0.0.1:{api}"
tokens = ["{TOKEN}"]
[network]
private = ["api.test", "*.private.test"]
[network.addresses]
"good.test" = ["127.0.0.1"]
"api.test" = ["127.0.0.1"]
"""
    with LiveNode(layer_store, options=options).running() as node:
        node.api = api
        yield node


@pytest.fixture
async def attacker(node, witness):
    async with node.client() as client:
        allowed = [f"good.test:{witness.port}", f"api.test:{node.api}", "localhost.localdomain"]
        async with await client.sandboxes.create(network=allowed) as sandbox:
            await sandbox.files.write("/raw.py", RAW)
            await sandbox.files.write("/sni.py", SNI)
            witness.heard.clear()
            yield sandbox


async def raw(sandbox, request: str, after: str = "") -> tuple[str, str]:
    import json

    result = await sandbox.run(["python3", "/raw.py", "3128", request, after], timeout=60)
    assert result.exit_code == 0, result.error_text
    return tuple(json.loads(result.text))


def plain(host: str, port: int, *, header: str | None = None) -> str:
    where = f"{host}:{port}"
    return rf"GET http://{where}/ HTTP/1.1\r\nHost: {header or where}\r\nConnection: close\r\n\r\n"


async def test_control_the_allowed_name_is_reached(attacker, witness) -> None:
    first, _ = await raw(attacker, plain("good.test", witness.port))
    assert first.startswith("HTTP/1.1 200")
    assert len(witness.heard) == 1


HOSTS = ["evil.test", "good.test.evil.test", "xgood.test", "test", "localhost", "x@good.test"]
ADDRESSES = ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::1]"]


@pytest.mark.parametrize("host", [*HOSTS, *ADDRESSES, "[::ffff:127.0.0.1]"])
async def test_other_names_and_addresses_reach_nothing(attacker, witness, host) -> None:
    first, _ = await raw(attacker, plain(host, witness.port))
    assert first.startswith(("HTTP/1.1 403", "HTTP/1.1 400")), first
    where = f"{host}:{witness.port}"
    first, rest = await raw(attacker, rf"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n", "x")
    assert first.startswith(("HTTP/1.1 403", "HTTP/1.1 400")), first
    assert "reached" not in first + rest
    assert not witness.heard


async def test_other_ports_of_an_allowed_name_are_closed(attacker, witness) -> None:
    for port in (22, 80, 443, witness.port + 1):
        first, _ = await raw(attacker, plain("good.test", port))
        assert first.startswith("HTTP/1.1 403"), first
    assert not witness.heard


async def test_host_header_that_differs_is_refused(attacker, witness) -> None:
    for header in ("evil.test", f"evil.test:{witness.port}", "good.test", "good.test:1"):
        first, _ = await raw(attacker, plain("good.test", witness.port, header=header))
        assert first.startswith("HTTP/1.1 400"), first
    assert not witness.heard


async def test_line_ends_and_second_requests_cannot_be_slipped_in(attacker, witness) -> None:
    where = f"good.test:{witness.port}"
    post = rf"POST http://{where}/ HTTP/1.1\r\nHost: {where}\r\nContent-Length: 4\r\n"
    for request in (
        rf"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\nHost: evil.test\r\n\r\n",
        rf"GET http://{where}/\r\nHost: evil.test HTTP/1.1\r\nHost: {where}\r\n\r\n",
        rf"{post}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n",
        rf"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\nX: a\x00b\r\n\r\n",
    ):
        first, _ = await raw(attacker, request)
        assert first.startswith("HTTP/1.1 400"), (request, first)
    assert not witness.heard


async def test_server_name_that_differs_gets_not_one_byte(attacker, witness) -> None:
    """A rule for one name opens that name only: no SNI spoofing (report 63)."""
    line = ["python3", "/sni.py", "3128", "good.test", "evil.test", str(witness.port)]
    text = (await attacker.run(line, timeout=60)).text
    assert text.startswith("HTTP/1.1 200 ")
    assert "stopped" in text
    assert b"".join(witness.heard) == b""
    first, rest = await raw(
        attacker,
        rf"CONNECT good.test:{witness.port} HTTP/1.1\r\nHost: good.test:{witness.port}\r\n\r\n",
        r"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n",  # no TLS at all
    )
    assert "reached" not in first + rest
    assert b"".join(witness.heard) == b""
    # the control: the right name comes through to the server, which speaks no TLS
    witness.heard.clear()
    line[4] = "good.test"
    await attacker.run(line, timeout=60)
    # an earlier connection may have ended, with nothing, after the list was cleared
    heard = b"".join(witness.heard)
    assert heard.startswith(b"\x16\x03\x01")
    assert b"good.test" in heard


async def test_nodes_own_api_is_never_reached(attacker, node) -> None:
    first, rest = await raw(attacker, plain("api.test", node.api))
    assert first.startswith("HTTP/1.1 403"), first
    assert "own service" in first + rest
    view = await attacker.network()
    assert view.decisions[-1].verdict == "refused"


async def test_name_that_leads_home_is_refused(attacker) -> None:
    """What a name server says is not believed where it points to the node's own machine."""
    first, rest = await raw(attacker, plain("localhost.localdomain", 80))
    assert first.startswith(("HTTP/1.1 403", "HTTP/1.1 502")), first
    assert "reached" not in rest


async def test_past_the_proxy_there_is_nothing(attacker, witness) -> None:
    script = (
        "import socket\n"
        "for family, kind, where in ((2, 1, ('203.0.113.1', 443)), (2, 1, ('169.254.169.254', 80)),\n"
        "        (10, 1, ('2001:db8::1', 443)), (2, 2, ('203.0.113.1', 53)),\n"
        f"        (2, 1, ('127.0.0.1', {witness.port}))):\n"
        "    s = socket.socket(family, kind); s.settimeout(5)\n"
        "    try: s.connect(where); print('connected', where)\n"
        "    except OSError as e: print('no')\n"
        "try: print('connected', socket.getaddrinfo('example.org', 80))\n"
        "except OSError: print('no')\n"
    )
    text = (await attacker.run(["python3", "-c", script], timeout=60)).text
    assert text == "no\n" * 6
    assert not witness.heard


async def test_sandbox_without_entries_has_no_proxy_at_all(node) -> None:
    """No network is air-gapped (report 64)."""
    async with node.client() as client:
        made = [await client.sandboxes.create(), await client.sandboxes.create(network=())]
        made += await client.sandboxes.create_many(2)
        for sandbox in made:
            script = "import socket; socket.create_connection(('127.0.0.1', 3128))"
            result = await sandbox.run(["python3", "-c", script], timeout=30)
            assert "ConnectionRefusedError" in result.error_text
            assert "proxy" not in (await sandbox.run("env")).text.lower()
            await sandbox.destroy()


async def test_one_sandboxs_policy_is_no_other_ones(node, witness) -> None:
    async with (
        node.client() as client,
        await client.sandboxes.create(network=[f"good.test:{witness.port}"]) as one,
        await client.sandboxes.create(network=["other.example"]) as other,
    ):
        for sandbox, status in ((one, 200), (other, 403)):
            await sandbox.files.write("/raw.py", RAW)
            first, _ = await raw(sandbox, plain("good.test", witness.port))
            assert first.startswith(f"HTTP/1.1 {status}")
