"""Servers on this machine for the proxy's other side: plain, TLS with a CA of their own, git."""

from __future__ import annotations

import contextlib
import http.server
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

GIT_BACKEND = "/usr/lib/git-core/git-http-backend"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers what tests ask; `site` is set by Site."""

    site: Site
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.site.hosts.append(self.headers["Host"])
        if self.path.startswith("/git/"):
            self._git()
        elif self.path.startswith("/big/"):
            self._big(int(self.path.rpartition("/")[2]))
        elif self.path == "/events":
            self._events()
        elif self.path == "/slow":
            self._slow()
        else:
            self._say(b"hello from " + self.headers["Host"].encode())

    do_POST = do_GET  # noqa: N815

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _big(self, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        piece = bytes(range(256)) * 256
        for _ in range(size // len(piece)):
            self.wfile.write(piece)

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(3):
            self.wfile.write(b"data: %d\n\n" % number)
            self.wfile.flush()
            self.site.next.wait(20)
            self.site.next.clear()
        self.close_connection = True

    def _slow(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(b"x" * 1000)
        self.wfile.flush()
        self.site.begun.set()
        self.site.next.wait(20)
        self.close_connection = True

    def _git(self) -> None:
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        done = subprocess.run(
            [GIT_BACKEND],
            input=body,
            capture_output=True,
            check=True,
            env={
                "GIT_PROJECT_ROOT": str(self.site.top),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path.removeprefix("/git"),
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "CONTENT_LENGTH": str(length),
                "PATH": os.environ["PATH"],
            },
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        self.send_response(200)
        for line in head.decode().splitlines():
            name, _, value = line.partition(": ")
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        pass  # clients that leave are part of the tests


class Site:
    """A plain and a TLS server of one content; `ca` is what a client must trust."""

    def __init__(self, top: Path, *names: str) -> None:
        self.top = top
        self.hosts: list[str] = []
        self.next, self.begun = threading.Event(), threading.Event()
        self.ca = top / "ca.pem"
        self._key = top / "key.pem"
        alternatives = ",".join(f"DNS:{name}" for name in names)
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        words += ["-subj", "/CN=test"]
        files = ["-keyout", str(self._key), "-out", str(self.ca)]
        names_in = ["-addext", f"subjectAltName={alternatives}"]
        subprocess.run([*words, *files, *names_in], check=True, capture_output=True)
        self.port = self.tls_port = 0

    @contextlib.contextmanager
    def serving(self) -> Iterator[Site]:
        handler = type("Bound", (Handler,), {"site": self})
        plain, tls = (Server(("127.0.0.1", 0), handler) for _ in range(2))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca, self._key)
        tls.socket = context.wrap_socket(
            tls.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port, self.tls_port = plain.server_address[1], tls.server_address[1]
        threads = [threading.Thread(target=server.serve_forever) for server in (plain, tls)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.next.set()
            for server in (plain, tls):
                server.shutdown()
                server.server_close()
            for thread in threads:
                thread.join()

    def repository(self, name: str) -> str:
        """Makes a bare repository with one commit; returns the commit."""
        work = self.top / "work"
        who = ["-c", "user.email=a@b.example", "-c", "user.name=n"]
        for command in (
            ["git", "init", "-q", "-b", "main", str(work)],
            ["git", "-C", str(work), *who, "commit", "-q", "--allow-empty", "-m", "one"],
            ["git", "clone", "-q", "--bare", str(work), str(self.top / name)],
        ):
            subprocess.run(command, check=True, capture_output=True)
        head = ["git", "-C", str(work), "rev-parse", "HEAD"]
        return subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
