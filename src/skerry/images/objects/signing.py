"""Signatures of requests to an S3 API (AWS Signature Version 4), for calls that obstore has not.

The scheme is public: the request is written in a canonical form, hashed, and signed with a key that is
derived from the secret, day and region. The secret itself never leaves this process.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import quote

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class Keys:
    """Who signs. Neither secret nor token are shown when this is printed."""

    access: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


def signed(
    method: str,
    host: str,
    path: str,
    query: str = "",
    body: bytes = b"",
    *,
    keys: Keys,
    region: str,
    now: dt.datetime | None = None,
) -> dict[str, str]:
    """Returns the headers of a signed request.

    `path` is percent-encoded already (`encoded`), and so is `query`, whose names are sorted.
    """
    stamp = (now or dt.datetime.now(dt.UTC)).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    lines = [f"{name}:{headers[name]}" for name in sorted(headers)]
    canonical = "\n".join([method, path, query, *lines, "", names, digest])
    parts = (stamp[:8], region, "s3", "aws4_request")
    scope = "/".join(parts)
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{keys.secret}".encode()
    for part in parts:
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashed}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={keys.access}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return headers


def encoded(path: str) -> str:
    """Returns a path or a query value as a signature wants it."""
    return quote(path, safe="/-_.~")
