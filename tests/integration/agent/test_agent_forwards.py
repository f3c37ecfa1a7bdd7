"""The real `skerry-init`: ports, from inside and from outside."""

from __future__ import annotations

import errno
import struct

import pytest
from native_agent import (
    CONNECT,
    CREDIT,
    DATA,
    DONE,
    EOF,
    ERRNO,
    ERROR,
    ERROR_STEP,
    HANDLE,
    LISTEN,
    OFFSET,
    OPENED,
    PING,
    PONG,
    PORT,
    REAL,
    RESET,
    STARTED,
    TOKEN,
    TOTAL,
    Client,
    Operation,
    pack,
    unpack,
)

pytestmark = REAL


def test_reverse_forward_carries_bytes_both_ways_and_half_closes(client: Client) -> None:
    handle = Client.next_handle
    Client.next_handle += 1
    client.send(LISTEN, handle << 2, pack(PORT, 3128))
    assert client.receive(5)[:2] == (STARTED, handle << 2)
    script = (
        "import socket,sys\n"
        "s=socket.create_connection((sys.argv[1],3128)); s.sendall(b'q'*500000); s.shutdown(1)\n"
        "d=b''\n"
        "while True:\n c=s.recv(65536)\n if not c: break\n d+=c\n"
        "print(len(d), d[:3])"
    )
    client.file("write", "/tmp/peer.py", "644", "-", stdin_data=script.encode())
    for address in ("127.0.0.1", "::1"):
        op = client.start("/usr/bin/python3", "/tmp/peer.py", address)
        got, stream, ended = 0, 0, False
        while not ended:
            kind, at, payload = client.step()
            if kind == OPENED:
                assert unpack(payload) == {HANDLE: [handle], PORT: [3128]}
                stream = at
            elif kind == DATA and at & 0x80000000:
                got += len(payload) - 8
                client.send(CREDIT, stream | 2, pack(OFFSET, got))
            elif kind == EOF and at & 0x80000000:
                assert unpack(payload)[TOTAL] == [got]
                ended = True
        assert got == 500_000
        client.send(DATA, stream | 1, struct.pack("<Q", 0) + b"abc" * 20000)
        client.send(EOF, stream | 1, pack(TOTAL, 60000))
        client.wait(op)
        assert op.stdout == b"60000 b'abc'\n", op.stderr
    # A second listener on the port fails by name.
    client.send(LISTEN, (handle + 1) << 2, pack(PORT, 3128))
    Client.next_handle += 2
    kind, _, payload = client.receive(5)
    while kind != DONE:
        kind, _, payload = client.receive(5)
    assert unpack(payload) == {ERROR_STEP: ["listen"], ERRNO: [errno.EADDRINUSE]}


SERVER = """
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])), family=socket.AF_INET6 if ":" in sys.argv[1]
                         else socket.AF_INET, backlog=512)
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    c = s.accept()[0]; d = b""
    while p := c.recv(65536):
        d += p
    c.sendall(d.upper() + b"!"); c.close()
"""


def serve(client: Client, address: str, port: int, times: int = 1) -> Operation:
    client.file("write", "/tmp/serve.py", "644", "-", stdin_data=SERVER.encode())
    op = client.start("/usr/bin/python3", "/tmp/serve.py", address, str(port), str(times))
    while b"ready" not in op.stdout:
        client.step()
    return op


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_host_connects_to_a_port_inside_and_each_half_closes(client: Client, address: str) -> None:
    op = serve(client, address, 8000)
    stream = 0xC0000000 | 7 << 2
    client.send(CONNECT, stream, pack(PORT, 8000))
    while (got := client.step())[1] != stream:
        pass
    assert got[0] == OPENED
    assert unpack(got[2]) == {PORT: [8000]}
    # One that is open already cannot be asked for again.
    client.send(CONNECT, stream, pack(PORT, 8000))
    while (got := client.step())[:2] != (ERROR, stream):
        pass
    assert unpack(got[2])[ERRNO] == [errno.EEXIST]
    client.send(DATA, stream | 1, struct.pack("<Q", 0) + b"abc" * 20000)
    client.send(EOF, stream | 1, pack(TOTAL, 60000))
    data, ended = b"", False
    while not ended:
        kind, at, payload = client.step()
        if kind == DATA and at == stream | 2:
            data += payload[8:]
        ended = kind == EOF and at == stream | 2
    assert data == b"ABC" * 20000 + b"!"
    client.wait(op)


def test_connection_that_the_host_cuts_is_a_reset_inside_and_not_an_end(client: Client) -> None:
    script = (
        "import socket; s = socket.create_server(('127.0.0.1', 8002)); print('ready', flush=True)\n"
        "c = s.accept()[0]; c.recv(1)\n"
        "try: print('end', c.recv(1))\n"
        "except ConnectionResetError: print('reset')\n"
    )
    op = client.start("/usr/bin/python3", "-c", script)
    while b"ready" not in op.stdout:
        client.step()
    stream = 0xC0000000 | 50 << 2
    client.send(CONNECT, stream, pack(PORT, 8002))
    while client.step()[0] != OPENED:
        pass
    client.send(DATA, stream | 1, struct.pack("<Q", 0) + b"x")
    client.send(RESET, stream)
    client.wait(op)
    assert op.stdout == b"ready\nreset\n"


def test_port_that_nobody_listens_on_is_refused_and_frees_its_place(client: Client) -> None:
    for number in range(1, 600):  # more than may be open at once
        stream = 0xC0000000 | number << 2
        client.send(CONNECT, stream, pack(PORT, 9))
        kind, at, payload = client.receive(5)
        assert (kind, at) == (ERROR, stream)
        assert unpack(payload) == {ERROR_STEP: ["connect"], ERRNO: [errno.ECONNREFUSED]}


def test_connections_that_the_host_asks_for_are_bounded(client: Client) -> None:
    serve(client, "127.0.0.1", 8001, 300)
    answers = []
    for number in range(1, 261):
        client.send(CONNECT, 0xC0000000 | (1000 + number) << 2, pack(PORT, 8001))
    while len(answers) < 260:
        kind, _, payload = client.step()
        if kind in (OPENED, ERROR):
            answers.append(unpack(payload).get(ERRNO, [0])[0])
    # A place may be refused for want of descriptors before the table is full.
    assert set(answers) <= {0, errno.EAGAIN, errno.EMFILE}
    assert 0 < answers.count(0) <= 256
    for number in range(1, 261):
        client.send(RESET, 0xC0000000 | (1000 + number) << 2)
    client.send(PING, 0, pack(TOKEN, b"here"))
    while client.step()[0] != PONG:
        pass


def test_reset_from_the_host_ends_the_connection_inside(client: Client) -> None:
    handle = Client.next_handle
    Client.next_handle += 1
    client.send(LISTEN, handle << 2, pack(PORT, 3129))
    assert client.receive(5)[0] == STARTED
    op = client.start("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/3129; read x <&3; echo ended")
    while (frame := client.step())[0] != OPENED:
        pass
    client.send(RESET, frame[1])
    client.wait(op)
    assert op.stdout == b"ended\n"
