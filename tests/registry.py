"""A real registry on loopback, with its disk at hand, and a connection to it that can be troubled."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

# Its notes on blobs, below /var/lib, are no business of the host's.
SKOPEO = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    'mount -t tmpfs tmpfs /var/lib && exec "$@"',
    *("sh", "skopeo", "--insecure-policy"),
)
USER, PASSWORD = "tester", "s3cret-of-the-test"


def missing() -> str | None:
    """Why there can be no registry here."""
    absent = [
        name for name in ("docker-registry", "skopeo", "htpasswd") if shutil.which(name) is None
    ]
    return f"missing: {', '.join(absent)} ('make setup' installs them)" if absent else None


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Registry:
    """`docker-registry` with its files in a directory; with `auth` only USER may use it."""

    def __init__(self, path: Path, *, auth: bool = False) -> None:
        self.path = path
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        path.mkdir()
        lines = [
            "version: 0.1",
            "log: {level: warn}",
            "storage:",
            f"  filesystem: {{rootdirectory: {path}/files}}",
            "http:",
            f"  addr: {self.host}",
            "  secret: of-the-test",
        ]
        if auth:
            hashed = subprocess.run(
                ["htpasswd", "-Bbn", USER, PASSWORD], check=True, capture_output=True, text=True
            ).stdout
            (path / "htpasswd").write_text(hashed)
            lines += ["auth:", f"  htpasswd: {{realm: test, path: {path}/htpasswd}}"]
        (path / "config.yml").write_text("\n".join(lines) + "\n")
        with (path / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["docker-registry", "serve", path / "config.yml"], stdout=log, stderr=log
            )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1),
            ):
                return
            assert self._process.poll() is None, (self.path / "log").read_text()
            time.sleep(0.05)
        raise AssertionError("the registry did not start")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def auth_file(self, password: str = PASSWORD, host: str | None = None) -> bytes:
        """The content of an auth file for this registry."""
        word = base64.b64encode(f"{USER}:{password}".encode()).decode()
        return json.dumps({"auths": {host or self.host: {"auth": word}}}).encode()

    def blob(self, digest: str) -> Path:
        """Where it keeps a blob."""
        digits = digest.removeprefix("sha256:")
        top = self.path / "files/docker/registry/v2/blobs/sha256"
        return top / digits[:2] / digits / "data"

    def push(self, layout: Path, tag: str, name: str, auth: bytes | None = None) -> None:
        """Puts an image of a layout there, as anybody would."""
        file = self.path / "auth.json"
        file.write_bytes(auth or b'{"auths":{}}')
        subprocess.run(
            [
                *(*SKOPEO, "copy", "--all", "--quiet"),
                *("--dest-tls-verify=false", f"--dest-authfile={file}"),
                *(f"oci:{layout}:{tag}", f"docker://{self.host}/{name}"),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )


class Troubled:
    """A way to a port that counts what comes back, and may cut or hold it after so many bytes."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.host = f"127.0.0.1:{self.port}"
        self.received = 0
        self.requests: list[str] = []
        self.cuts: list[int] = []  # each cuts one answer to a blob's request after so many bytes
        self.hold = False  # answers to requests of blobs never come
        self._open: list[socket.socket] = [self._server]
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self._open.append(client)
            thread = threading.Thread(target=self._carry, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _carry(self, client: socket.socket) -> None:
        """One request a connection is enough: the answer's end is the connection's."""
        with contextlib.suppress(OSError), client:
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(65_536)
                if not piece or piece[0] == 0x16:  # it tries TLS first
                    return
                head += piece
            line = head.split(b"\r\n", 1)[0].decode()
            self.requests.append(line)
            of_blob = line.startswith("GET") and "/blobs/" in line
            if of_blob and self.hold:
                while client.recv(65_536):
                    pass
                return
            left = self.cuts.pop(0) if of_blob and self.cuts else None
            with socket.create_connection(("127.0.0.1", self._target), 30) as server:
                self._open.append(server)
                server.sendall(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
                while data := server.recv(65_536):
                    if left is not None:
                        data, left = data[:left], left - len(data)
                    self.received += len(data)
                    client.sendall(data)
                    if left is not None and left <= 0:
                        return


@contextlib.contextmanager
def running(path: Path, *, auth: bool = False) -> Iterator[Registry]:
    registry = Registry(path, auth=auth)
    try:
        yield registry
    finally:
        registry.stop()


@contextlib.contextmanager
def troubled(port: int) -> Iterator[Troubled]:
    way = Troubled(port)
    try:
        yield way
    finally:
        way.close()
