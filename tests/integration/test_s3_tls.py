"""An S3 store over TLS with a private authority: trusted if it is named, refused if not."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from s3_place import s3_options
from skerry.errors import StorageFailed
from skerry.images.objects.s3 import S3Objects

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl program")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private authority (ca.pem), and what it issued for 127.0.0.1 (leaf.pem, leaf.key)."""
    place = tmp_path_factory.mktemp("tls")
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    leaf = "-addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE"
    for command in (
        f"{new} -keyout ca.key -out ca.pem -subj /CN=tests",
        f"{new} -keyout leaf.key -out leaf.pem -subj /CN=leaf {leaf} -CA ca.pem -CAkey ca.key",
    ):
        subprocess.run(["openssl", *command.split()], cwd=place, check=True, capture_output=True)
    return place


@pytest.fixture
def secure(s3_server, certificates: Path):
    """A port where the server's API is spoken over TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates / "leaf.pem", certificates / "leaf.key")

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as near,
                socket.create_connection(("127.0.0.1", s3_server.port)) as far,
            ):
                up = threading.Thread(target=pump, args=(near, far))
                up.start()
                pump(far, near)
                up.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Passes bytes on until either side ends, which ends both."""
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def test_private_authority_that_is_named_is_trusted(
    secure: str, s3_server, certificates: Path, tmp_path: Path
) -> None:
    ca_file = str(certificates / "ca.pem")
    options = s3_options(s3_server, tmp_path, endpoint=secure, ca_file=ca_file, patience_s=10)
    objects = S3Objects(f"s3://{s3_server.bucket}/{tmp_path.name}", options)
    content = random.Random(1).randbytes(17 << 20)
    (tmp_path / "blob").write_bytes(content)
    assert objects.put_bytes("x", b"small", replace=False) is True
    assert objects.put_file("blob", str(tmp_path / "blob")) is True  # in parts
    assert objects.read("blob", 1 << 20, 100) == content[1 << 20 : (1 << 20) + 100]


def test_private_authority_that_is_not_named_is_refused_at_once(
    secure: str, s3_server, tmp_path: Path
) -> None:
    options = s3_options(s3_server, tmp_path, endpoint=secure, patience_s=30)
    objects = S3Objects(f"s3://{s3_server.bucket}/{tmp_path.name}", options)
    (tmp_path / "blob").write_bytes(bytes(9 << 20))
    for call in (lambda: objects.get("x", 10), lambda: objects.sweep(1.0)):
        with pytest.raises(StorageFailed, match="trusted") as caught:
            call()
        assert caught.value.fields["tries"] == 1
