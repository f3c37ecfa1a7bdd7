"""How an S3-compatible store is reached: checked options, and secrets that are only named in them.

A secret is written as "env:NAME" or "file:/PATH" and read when it is used, so that one that is
replaced is taken up within KEYS_FRESH_S. Neither options nor errors ever hold its value.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from skerry.errors import Bug, InvalidRequest
from skerry.images.objects.api import KEY_BYTES_MAX, check_key
from skerry.images.objects.signing import Keys

KEYS_FRESH_S = 60.0
SECRET_BYTES_MAX = 4096
# Object stores allow 1,024 bytes of key, the layer store's own take their share.
PREFIX_BYTES_MAX = 1024 - KEY_BYTES_MAX - 1
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class Place(NamedTuple):
    """A bucket, and the keys in it that are the store's: those that begin with `prefix`."""

    bucket: str
    prefix: str  # "" or ending in "/"


def is_s3(store: str) -> bool:
    """Says whether a configured store is one of these and not a directory."""
    return store.startswith("s3:")


def parse_place(text: str) -> Place:
    """Returns the parts of "s3://BUCKET/PREFIX"; raises InvalidRequest."""
    scheme, separator, rest = text.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if scheme != "s3" or not separator or not _BUCKET.fullmatch(bucket):
        raise InvalidRequest(f"{text[:100]!r} is not s3://BUCKET/PREFIX")
    if len(prefix) > PREFIX_BYTES_MAX:
        raise InvalidRequest(f"the prefix of {text[:100]!r} is longer than {PREFIX_BYTES_MAX}")
    if prefix:
        try:
            check_key(prefix)
        except Bug as error:  # a key of ours is never wrong; this one is a person's
            raise InvalidRequest(
                f"the prefix of {text[:100]!r} may have letters, digits, . _ ! = - and /"
            ) from error
    return Place(bucket, f"{prefix}/" if prefix else "")


@dataclass(frozen=True, kw_only=True)
class S3Options:
    """The configuration table `s3`: where the API answers, whose keys are used, how long is waited."""

    endpoint: str = ""  # "https://HOST[:PORT]"; "": Amazon's of the region
    region: str = "us-east-1"
    path_style: bool = True  # HOST/BUCKET/KEY; False: BUCKET.HOST/KEY
    access_key: str = "env:AWS_ACCESS_KEY_ID"
    secret_key: str = "env:AWS_SECRET_ACCESS_KEY"  # noqa: S105 - a name
    session_token: str = ""
    ca_file: str = ""  # further certificates to trust, PEM
    timeout_s: float = 20.0  # one request, with its body
    patience_s: float = 60.0  # one call with all its repeats
    part_bytes: int = 8 << 20  # larger files are uploaded in parts of it
    parts_in_flight: int = 4

    def check(self) -> S3Options:
        """Returns itself if it makes sense; raises InvalidRequest naming what does not."""
        if self.endpoint:
            url = urlsplit(self.endpoint)
            if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/"):
                raise InvalidRequest("s3.endpoint: not http(s)://HOST[:PORT]")
            if url.username or url.password or url.query or url.fragment:
                raise InvalidRequest("s3.endpoint: only http(s)://HOST[:PORT], no keys in it")
        if not _REGION.fullmatch(self.region):
            raise InvalidRequest("s3.region: letters, digits and - only")
        for name in ("access_key", "secret_key", "session_token"):
            _check_reference(f"s3.{name}", getattr(self, name), may_lack=name == "session_token")
        if self.ca_file and not os.path.isabs(self.ca_file):
            raise InvalidRequest("s3.ca_file must be an absolute path")
        if not 0.1 <= self.timeout_s <= 600 or not 0 <= self.patience_s <= 3600:
            raise InvalidRequest("s3.timeout_s: 0.1 to 600; s3.patience_s: 0 to 3600")
        if not 5 << 20 <= self.part_bytes <= 1 << 30 or not 1 <= self.parts_in_flight <= 64:
            raise InvalidRequest("s3.part_bytes: 5 MiB to 1 GiB; s3.parts_in_flight: 1 to 64")
        return self

    def url(self, bucket: str) -> str:
        """Returns what comes before "/KEY"."""
        base = self.endpoint.rstrip("/") or f"https://s3.{self.region}.amazonaws.com"
        if self.path_style:
            return f"{base}/{bucket}"
        scheme, _, host = base.partition("://")
        return f"{scheme}://{bucket}.{host}"

    def keys(self) -> Keys:
        """Reads the secrets anew; raises InvalidRequest naming one that is not there."""
        token = self.session_token
        return Keys(
            named_secret(self.access_key),
            named_secret(self.secret_key),
            named_secret(token) if token else None,
        )

    def files(self) -> tuple[str, ...]:
        """Paths of the named secrets that are files."""
        named = (self.access_key, self.secret_key, self.session_token)
        return tuple(one.removeprefix("file:") for one in named if one.startswith("file:"))


def named_secret(reference: str) -> str:
    """Returns what "env:NAME" or "file:/PATH" stands for, without white space around it."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = os.environ.get(name, "").strip()
        if not value:
            raise InvalidRequest(f"the secret {reference} is not set in the environment")
        return value
    try:
        with open(name, "rb") as file:
            raw = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest(f"the secret {reference} cannot be read: {error.strerror}") from error
    text = raw.decode("ascii", "replace").strip()
    if not text or len(raw) > SECRET_BYTES_MAX or not text.isprintable() or not text.isascii():
        raise InvalidRequest(f"the secret {reference} is not one line of ASCII")
    return text


def _check_reference(what: str, reference: str, *, may_lack: bool) -> None:
    if may_lack and not reference:
        return
    kind, _, name = reference.partition(":")
    good = {"env": _VARIABLE.fullmatch(name) is not None, "file": os.path.isabs(name)}
    if not good.get(kind, False):
        # The value is not shown: somebody may have written the secret itself there.
        raise InvalidRequest(f'{what}: name the secret, as "env:NAME" or "file:/PATH"')
