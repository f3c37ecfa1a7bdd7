"""What a request to the proxy asks for. Pure; everything here is hostile input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from skerry.errors import InvalidRequest
from skerry.spec.network import canonical_host, port_number

Headers = list[tuple[bytes, bytes]]

# RFC 9110 section 7.6.1, and what only concerns the proxy.
_HOP = frozenset(
    (b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade")
) | frozenset((b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"))


class Target(NamedTuple):
    """A host and port, and of plain HTTP the path with its query."""

    host: str
    port: int
    path: bytes = b""


def authority(text: str, default_port: int | None) -> Target:
    """Returns what HOST[:PORT] names; raises InvalidRequest.

    Without a default the port must be there.
    """
    if "@" in text:
        raise InvalidRequest("a user in the address: write only host and port")
    if text.startswith("["):
        raise InvalidRequest(f"{text[:80]!r} is an address: only names can be asked for")
    host, colon, port = text.rpartition(":")
    if not colon:
        host = text
        if default_port is None:
            raise InvalidRequest(f"{text[:80]!r} names no port")
        return Target(canonical_host(host), default_port)
    if not port:
        raise InvalidRequest(f"{text[:80]!r} names no port behind its colon")
    return Target(canonical_host(host), port_number(port))


def absolute(target: bytes) -> Target:
    """Returns what an absolute http:// URI names; raises InvalidRequest."""
    text = target.decode("ascii", "strict") if target.isascii() else ""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise InvalidRequest("this is a proxy: ask with http://HOST/PATH, or CONNECT HOST:443")
    if scheme.lower() != "http":
        raise InvalidRequest(f"{scheme[:20]!r} cannot be asked for in plain text: use CONNECT")
    if "#" in rest or "\\" in rest:
        raise InvalidRequest("the address holds a fragment or a backslash")
    ends = [at for at in (rest.find("/"), rest.find("?")) if at >= 0]
    end = min(ends, default=len(rest))
    path = rest[end:]
    if not path.startswith("/"):
        path = f"/{path}"
    return authority(rest[:end], 80)._replace(path=path.encode())


def of_request(method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]]) -> Target:
    """Returns what a request asks for, its Host header being of the same mind; InvalidRequest."""
    if method == b"CONNECT":
        wanted = authority(target.decode("ascii", "replace"), None)
    else:
        wanted = absolute(target)
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        raise InvalidRequest("more than one Host header")
    names = [name for name, _ in headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise InvalidRequest("Transfer-Encoding and Content-Length in one request")
    if hosts:
        said = authority(hosts[0].decode("ascii", "replace"), 443 if method == b"CONNECT" else 80)
        same_port = method == b"CONNECT" or said.port == wanted.port
        if said.host != wanted.host or not same_port:
            raise InvalidRequest(
                f"the Host header names {said.host}:{said.port}, the address "
                f"{wanted.host}:{wanted.port}"
            )
    return wanted


def forwarded(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Returns the headers that go on: none of this hop's, and no Host."""
    headers = list(headers)
    named = {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
    drop = _HOP | (named - {b"content-length"}) | {b"host"}
    return [(name, value) for name, value in headers if name not in drop]
