"""The link of tests and benchmarks: does it delay, throttle, break, count, and end as it says?"""

from __future__ import annotations

import http.client
import http.server
import os
import random
import socket
import subprocess
import sys
import threading
import time

import pytest

from skerry.testing.link import Fault, Link, link
from waiting import soon

BODY = random.Random(1).randbytes(1 << 20)


class Files(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(BODY), 100_000):
                piece = BODY[at : at + 100_000]
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        self.answer(BODY)

    def do_PUT(self) -> None:
        self.answer(str(len(self.rfile.read(int(self.headers["Content-Length"])))).encode())

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture(scope="module")
def port():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def near(port):
    with link(port) as made:
        yield made


def ask(near: Link, method: str = "GET", path: str = "/file", body: bytes | None = None):
    connection = http.client.HTTPConnection("127.0.0.1", near.port, timeout=10)
    try:
        connection.request(method, path, body=body)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_without_faults_everything_passes_as_it_is(near: Link) -> None:
    assert ask(near)[:2] == (200, BODY)
    assert ask(near, path="/chunked")[1] == BODY
    assert ask(near, "HEAD")[2]["Content-Length"] == str(len(BODY))
    assert ask(near, "PUT", body=b"x" * 300_000)[1] == b"300000"
    counts = near.counts()
    assert counts.requests == 4
    assert counts.up == 300_000
    assert 2 * len(BODY) <= counts.down < 2 * len(BODY) + 1000
    assert [(one["method"], one["path"]) for one in near.log()][:2] == [
        ("GET", "/file"),
        ("GET", "/chunked"),
    ]
    near.reset()
    assert near.counts().requests == 0


def test_connection_is_used_again_for_many_requests(near: Link) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", near.port, timeout=10)
    for _ in range(3):
        connection.request("GET", "/file")
        assert connection.getresponse().read() == BODY
    connection.close()
    assert (near.counts().requests, near.counts().connections) == (3, 1)


def test_rate_is_shared_by_all_connections(near: Link) -> None:
    near.set(rate=4 * len(BODY))
    began = time.monotonic()
    threads = [threading.Thread(target=ask, args=(near,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began > 0.9


def test_latency_is_of_each_request(near: Link) -> None:
    near.set(latency_s=0.1)
    began = time.monotonic()
    ask(near, "HEAD")  # a connection and a request
    assert time.monotonic() - began >= 0.2


def test_refusal_comes_as_often_as_asked_where_it_matches(near: Link) -> None:
    near.faults(Fault("status", match="^PUT /a", times=1, status=503, retry_after=7))
    assert ask(near)[0] == 200
    status, body, headers = ask(near, "PUT", "/a", b"x" * 200_000)
    assert (status, headers["Retry-After"]) == (503, "7")
    assert b"<Code>SlowDown</Code>" in body
    assert ask(near, "PUT", "/a", b"x")[1] == b"1"
    assert near.counts().injected == {"status": 1}


def test_share_of_requests_is_drawn_from_a_fixed_seed(port) -> None:
    seen = []
    for _ in range(2):
        with link(port) as near:
            near.faults(Fault("status", share=0.3))
            seen.append([ask(near, "HEAD")[0] for _ in range(30)])
    assert seen[0] == seen[1]
    assert 1 <= seen[0].count(503) <= 20


def test_truncated_answer_promised_more(near: Link) -> None:
    near.faults(Fault("truncate", after=70_000))
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(near)
    assert caught.value.partial == BODY[:70_000]


def test_short_answer_looks_whole(near: Link) -> None:
    near.faults(Fault("short", after=5))
    assert ask(near)[1] == BODY[:-5]


def test_flipped_bit_is_one(near: Link) -> None:
    near.faults(Fault("flip", after=500_000))
    got = ask(near)[1]
    assert len(got) == len(BODY)
    differing = [at for at in range(len(BODY)) if got[at] != BODY[at]]
    assert differing == [500_000]


def test_stall_ends_after_its_time(near: Link) -> None:
    near.faults(Fault("stall", after=1000, seconds=0.5))
    began = time.monotonic()
    assert ask(near)[1] == BODY
    assert time.monotonic() - began >= 0.5


def test_cut_is_a_reset(near: Link) -> None:
    near.faults(Fault("cut"))
    with pytest.raises(ConnectionResetError):
        ask(near)
    near.faults(Fault("cut", after=100_000))
    with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
        ask(near)


def test_gone_link_refuses_and_comes_back_at_its_port(near: Link) -> None:
    ask(near)
    near.leave()
    with pytest.raises(ConnectionError):
        ask(near)
    near.come_back()
    assert ask(near)[0] == 200


def test_plain_relay_knows_no_protocol() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def echo() -> None:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(65_536):
                    connection.sendall(data[::-1])

        thread = threading.Thread(target=echo)
        thread.start()
        with link(server.getsockname()[1], http=False) as near:
            with socket.create_connection(("127.0.0.1", near.port)) as client:
                client.sendall(b"abc")
                assert client.recv(100) == b"cba"
            thread.join()


def test_relay_ends_with_the_process_that_started_it(port) -> None:
    code = f"""
from skerry.testing.link import Link
print(Link({port}).pid, flush=True)
input()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    assert os.path.exists(f"/proc/{pid}")
    child.kill()
    child.communicate()
    assert soon(lambda: not running(pid))


def running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
