"""Driving skopeo: images from registries into layouts, and from layouts to registries.

It is run as a program, with bounds on time, silence and bytes; its words become typed errors.
Credentials go through a file that only root can read, never through arguments or the environment,
and only plain ones: a configured helper would be a program of the caller's choice.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, NamedTuple, cast

import msgspec

from skerry.errors import (
    InvalidRequest,
    NotFound,
    RegistryDenied,
    SkerryError,
    StorageFailed,
    Unavailable,
)
from skerry.images.oci.model import Platform
from skerry.images.scratch import storage_errors

Log = Callable[[str], None]

AUTH_BYTES_MAX = 64 << 10
_POLICY = "/etc/containers/policy.json"
_REFERENCE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?/)?[a-z0-9][a-z0-9._/-]*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_REFERENCE_MAX = 512
_POLL_S = 0.2
_PROGRESS_S = 5.0
_RETRY_PAUSES_S = (1.0, 4.0)
# What of the environment says how this machine reaches others.
_NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
# As root it would note where it saw which blob, below /var/lib, for all its users: here it must not.
_NOTES = "/var/lib/containers"
_COVER = f"mkdir -p {_NOTES} && mount -t tmpfs -o size=64m tmpfs {_NOTES}"
_OWN_NOTES = (
    *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
    f'{{ {_COVER}; }} 2>/dev/null; exec "$@"',
    "sh",
)
# Its work needs no capability; as root it would have all.
_POWERLESS = ("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")
_FATAL = re.compile(r'^time="[^"]*" level=fatal msg="(.*)"$')
_IDLE_WORDS = ("Getting image source signatures", "Storing signatures")


class SkopeoLimits(msgspec.Struct, frozen=True):
    """Bounds of one copy."""

    time_s: float = 3600.0
    silence_s: float = 120.0  # without a byte or a word
    bytes_max: int = 64 << 30


class Access(NamedTuple):
    """How a registry is reached: the content of an auth file, and whether TLS is checked."""

    auth: bytes | None = None
    tls_verify: bool = True


class Skopeo:
    """The program, for one use in a scratch directory, which holds credentials while it runs."""

    def __init__(
        self, scratch: str, access: Access, log: Log, limits: SkopeoLimits | None = None
    ) -> None:
        self._scratch = scratch
        self._access = access
        self._log = log
        self._limits = limits or SkopeoLimits()

    def fetch(self, reference: str, layout: str, blobs: str, platform: Platform) -> None:
        """Makes a layout of an image of a registry, its blobs in the directory `blobs`.

        What is there already is not fetched again. Tried three times where the connection is at
        fault. Raises NotFound, RegistryDenied, Unavailable, StorageFailed, InvalidRequest.
        """
        source = f"docker://{check_reference(reference)}"
        options = ["--override-os", platform.os, "--override-arch", platform.architecture]
        if platform.variant:
            options += ["--override-variant", platform.variant]
        with self._auth() as auth:
            # Layers stay as they are: by their digests they are found again.
            copy = ["copy", *auth("src"), "--dest-oci-accept-uncompressed-layers"]
            copy += [f"--dest-shared-blob-dir={blobs}", source, f"oci:{layout}:image"]
            self._with_retries([*options, *copy], reference)

    def push(self, layout: str, reference: str) -> str:
        """Copies a layout's image to a registry; returns the digest of its manifest there."""
        target = f"docker://{check_reference(reference)}"
        digest = os.path.join(self._scratch, "digest")
        with self._auth() as auth:
            copy = ["copy", *auth("dest"), f"--digestfile={digest}"]
            self._with_retries([*copy, f"oci:{layout}:image", target], reference)
        with storage_errors("reading what was pushed"), open(digest, encoding="ascii") as file:
            return file.read().strip()

    @contextlib.contextmanager
    def _auth(self) -> Iterator[Callable[[str], list[str]]]:
        path = os.path.join(self._scratch, "auth.json")
        content = b'{"auths":{}}' if self._access.auth is None else clean_auth(self._access.auth)
        with storage_errors("writing credentials to the scratch directory"):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "wb") as file:
                file.write(content)
        verify = str(self._access.tls_verify).lower()
        try:
            yield lambda side: [f"--{side}-authfile={path}", f"--{side}-tls-verify={verify}"]
        finally:
            os.unlink(path)

    def _with_retries(self, argv: list[str], reference: str) -> None:
        for pause in (*_RETRY_PAUSES_S, None):
            try:
                self._run(argv, reference)
            except Unavailable as error:
                if pause is None or not error.fields.get("again"):
                    raise
                self._log(f"trying again in {pause:g} s: {error.message}")
                time.sleep(pause)
            else:
                return

    def _run(self, argv: list[str], reference: str) -> None:
        program = shutil.which("skopeo")
        if program is None:
            raise Unavailable("skopeo is missing on the node: run 'apt-get install skopeo' there")
        policy = () if os.path.exists(_POLICY) else ("--insecure-policy",)
        process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL"),
                *((*_OWN_NOTES, *_POWERLESS) if os.geteuid() == 0 else ()),
                *(program, *policy, "--tmpdir", self._scratch, *argv),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment(),
            cwd=self._scratch,
        )
        tail: deque[str] = deque(maxlen=10)
        words = _Words(process, tail, self._log)
        try:
            ended = self._watch(process, words)
        finally:
            process.kill()
            process.wait()
            words.close()
        if ended is not None:
            raise ended
        if process.returncode != 0:
            said = " ".join(line for line in tail if _STEP.match(line) is None)
            raise explain(reference, said, tls_verify=self._access.tls_verify)

    def _watch(self, process: subprocess.Popen[bytes], words: _Words) -> SkerryError | None:
        """Waits for its end; returns why it has to be ended."""
        start = heard = told = time.monotonic()
        moved = _Moved()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
                return None
            now, found = time.monotonic(), _moved(process.pid)
            if found != moved or words.take_news():
                heard, moved = now, found
            if now - told >= _PROGRESS_S:
                told = now
                self._log(f"copying: {moved.written >> 20} MiB")
            if moved.written > self._limits.bytes_max:
                return InvalidRequest(f"the image is larger than {self._limits.bytes_max} bytes")
            if now - heard > self._limits.silence_s:
                silence = f"nothing came from the registry for {self._limits.silence_s:g} s"
                return Unavailable(silence, again=True)
            if now - start > self._limits.time_s:
                return Unavailable(f"skopeo took longer than {self._limits.time_s:g} s")

    def _environment(self) -> dict[str, str]:
        names = {name for upper in _NETWORK for name in (upper, upper.lower())}
        own = {name: value for name, value in os.environ.items() if name in names}
        # Nothing of the node's own user: no other credentials, no other settings.
        home = {"HOME": self._scratch, "XDG_RUNTIME_DIR": self._scratch}
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", **own, **home}


class _Moved(NamedTuple):
    """Bytes that a process read and wrote, files and connections alike."""

    read: int = 0
    written: int = 0


def _moved(pid: int) -> _Moved:
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as file:
            values = dict(line.split(": ") for line in file.read().splitlines())
    except OSError:
        return _Moved()  # it has just ended, or this kernel does not count
    return _Moved(int(values["rchar"]), int(values["wchar"]))


def check_reference(reference: str) -> str:
    """Returns the name of an image in a registry; raises InvalidRequest."""
    if len(reference) > _REFERENCE_MAX or _REFERENCE.fullmatch(reference) is None:
        raise InvalidRequest(
            f"{reference[:200]!r} names no image in a registry: write HOST[:PORT]/NAME[:TAG], "
            "the name in lower case"
        )
    return reference


def clean_auth(raw: bytes) -> bytes:
    """Returns only the plain credentials of an auth file; raises InvalidRequest."""
    if len(raw) > AUTH_BYTES_MAX:
        raise InvalidRequest(f"the auth file has more than {AUTH_BYTES_MAX} bytes")
    try:
        auths = msgspec.json.decode(raw, type=_AuthFile).auths
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Without the words of the decoder: they may quote what they stumble over.
        raise InvalidRequest(
            "the auth file is none: it is like ~/.docker/config.json, with a member auths"
        ) from None
    if not any(entry.auth or entry.identitytoken for entry in auths.values()):
        raise InvalidRequest(
            "the auth file holds no credentials itself (those of a credsStore cannot be used): "
            "make one with 'skopeo login --authfile FILE HOST'"
        )
    return msgspec.json.encode(_AuthFile(auths))


class _AuthEntry(msgspec.Struct, omit_defaults=True):
    auth: str = ""
    identitytoken: str = ""


class _AuthFile(msgspec.Struct):
    auths: dict[str, _AuthEntry]


class _Words:
    """What the program says, line by line to the log, the last ones kept."""

    def __init__(self, process: subprocess.Popen[bytes], tail: deque[str], log: Log) -> None:
        self._output = cast("IO[bytes]", process.stdout)
        self._tail = tail
        self._log = log
        self._news = False
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def take_news(self) -> bool:
        """Says whether it said anything since the last call."""
        news, self._news = self._news, False
        return news

    def close(self) -> None:
        """Ends with the program."""
        self._thread.join()
        self._output.close()

    def _collect(self) -> None:
        for raw in self._output:
            line = raw[:4096].decode("utf-8", "replace").strip()
            self._news = True
            matched = _FATAL.match(line)
            if matched is not None:
                # The error says it.
                self._tail.append(matched.group(1).replace('\\"', '"'))
            elif line and line not in _IDLE_WORDS:
                self._tail.append(line)
                self._log(line)


_STEP = re.compile(r"(?:Copying|Skipping) (?:blob|config) |(?:Writing manifest|Storing sign)")
_DENIED = re.compile(
    r"unauthorized|authentication required|invalid username/password|403 \(?Forbidden"
    r"|access (?:to the resource is )?denied|: denied:|no basic auth credentials",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"manifest unknown|name unknown|repository name not known|NAME_UNKNOWN|MANIFEST_UNKNOWN"
    r"|404 \(Not Found\)",
    re.IGNORECASE,
)
_WRONG_PLATFORM = re.compile(r"no image found in (?:manifest list|image index)", re.IGNORECASE)
_NOT_TLS = re.compile(r"server gave HTTP response to HTTPS client|x509:|tls: ", re.IGNORECASE)
_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_BLOB_GONE = re.compile(r"blob unknown|fetching blob|BLOB_UNKNOWN", re.IGNORECASE)
_WRONG_BYTES = re.compile(
    r"digest (?:did not|mismatch)|does not match|expected.*digest", re.IGNORECASE
)
_REFUSED = re.compile(r"invalid reference format|parsing image source|Invalid image name")
_POLICY_SAYS = re.compile(r"Source image rejected|policy\.json")


def explain(reference: str, said: str, *, tls_verify: bool = True) -> SkerryError:
    """Returns what skopeo's last words mean; with the field `again` if another try may help."""
    words = said.replace(reference, "it")  # what a name says is no reason
    if _FULL.search(words):
        return StorageFailed(f"no space to copy {reference}: {said}")
    if _DENIED.search(words):
        return RegistryDenied(
            f"the registry does not let us use {reference}: give credentials for it "
            "(--authfile FILE, made with 'skopeo login --authfile FILE HOST')",
        )
    if _WRONG_PLATFORM.search(words):
        return NotFound(f"{reference} is not made for this platform: choose one with platform")
    if _BLOB_GONE.search(words) and _MISSING.search(words):
        return Unavailable(f"the registry has lost a part of {reference}: {said}", again=True)
    if _MISSING.search(words):
        return NotFound(f"the registry has no {reference}: check its name and tag")
    if _REFUSED.search(words):
        return InvalidRequest(f"{reference!r} names no image in a registry: {said}")
    if _WRONG_BYTES.search(words):
        return Unavailable(f"the registry sent damaged bytes of {reference}: {said}", again=True)
    if tls_verify and _NOT_TLS.search(words):
        return Unavailable(
            f"the registry of {reference} cannot be trusted over TLS: {said}",
            hint="if that is meant so, as with a local one: --no-tls-verify",
        )
    if _POLICY_SAYS.search(words):
        return InvalidRequest(f"the node's policy ({_POLICY}) refuses {reference}: {said}")
    return Unavailable(f"cannot copy {reference}: {said or 'skopeo said nothing'}", again=True)
