"""What a sandbox may reach, as a user writes it: names and service words. Pure.

| entry | allows |
|---|---|
| `pypi` | what the operator calls so: a list of names (a word without a dot) |
| `example.org` | that name, ports 80 and 443 |
| `*.example.org` | every name below it, at any depth, and not `example.org` itself; 80 and 443 |
| `example.org:8443`, `*.example.org:8443` | that port only |
| `*` | every public name, ports 80 and 443 |

Addresses and CIDRs are no entries: what is fetched is checked by its name, and an address has none.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from skerry.errors import InvalidRequest

ENTRIES_MAX = 256
NAME_BYTES_MAX = 253
EVERYTHING = "*"  # every name; that private addresses are refused stays as it is
PORTS = (80, 443)  # of an entry that names none

_WORD = re.compile(r"[a-z][a-z0-9-]{0,31}")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# A last label that a resolver may take for (a part of) an IPv4 address: 127.1, 0x7f000001.
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Entry(NamedTuple):
    """One entry: a service word, or a host, perhaps a wildcard, perhaps with a port."""

    text: str
    word: str | None = None
    host: str = ""  # canonical; of a wildcard without the `*.`, of EVERYTHING ""
    wildcard: bool = False
    port: int | None = None


def canonical_host(text: str) -> str:
    """Returns the one spelling of a host name: lower case, no trailing dot.

    Raises InvalidRequest, saying why, for what is no name: addresses in any notation, names that
    are not ASCII, userinfo, overlong names and labels.
    """
    shown = repr(text[:80])
    if not text.isascii():
        raise InvalidRequest(f"{shown} is not ASCII: write the name's xn-- form")
    name = text.lower()
    if name.endswith(".") and not name.endswith(".."):
        name = name[:-1]
    if not name or len(name) > NAME_BYTES_MAX:
        raise InvalidRequest(f"{shown} is no host name: empty or longer than {NAME_BYTES_MAX}")
    if ":" in name or name.startswith("["):
        raise InvalidRequest(f"{shown} is an address: only names can be allowed and asked for")
    labels = name.split(".")
    for label in labels:
        if _LABEL.fullmatch(label) is None:
            raise InvalidRequest(f"{shown} is no host name: the part {label[:70]!r} is not allowed")
    if _NUMERIC.fullmatch(labels[-1]) is not None:
        raise InvalidRequest(f"{shown} is an address: only names can be allowed and asked for")
    return name


def port_number(text: str) -> int:
    """Returns a port of 1 to 65535 in plain decimal digits; raises InvalidRequest."""
    plain = text.isascii() and text.isdecimal() and len(text) <= 5 and text[0] != "0"
    if not plain or int(text) > 65_535:
        raise InvalidRequest(f"{text[:20]!r} is no port between 1 and 65535")
    return int(text)


def parse_entry(text: str) -> Entry:
    """Returns what an entry says; raises InvalidRequest, saying what is wrong with it."""
    if not isinstance(text, str) or not text:
        raise InvalidRequest("network: an entry is empty")
    shown = repr(text[:80])
    if "//" in text:
        raise InvalidRequest(f"network: {shown} is a URL: write only its host name")
    if "/" in text:
        raise InvalidRequest(
            f"network: {shown} is a range of addresses: only names can be allowed, "
            "since what is fetched is checked by its name"
        )
    if "@" in text:
        raise InvalidRequest(f"network: {shown} holds a user: write only the host name")
    if _WORD.fullmatch(text) is not None:
        return Entry(text, word=text)
    if text == EVERYTHING:
        return Entry(text, wildcard=True)
    host, colon, port = text.rpartition(":")
    if not colon or ":" in host or host.startswith("["):
        host, port = text, ""
    wildcard = host.startswith("*.")
    try:
        name = canonical_host(host[2:] if wildcard else host)
        number = port_number(port) if colon and host != text else None
    except InvalidRequest as error:
        raise InvalidRequest(f"network: {error.message}") from None
    if "*" in name or (wildcard and "." not in name):
        raise InvalidRequest(f"network: {shown} is too wide: write *.NAME with a dot in NAME")
    if not wildcard and number is None and "." not in name:
        raise InvalidRequest(f"network: {shown} is neither a service word nor a host name")
    return Entry(text, host=name, wildcard=wildcard, port=number)


def check_network(entries: tuple[str, ...]) -> tuple[Entry, ...]:
    """Returns the parsed entries; raises InvalidRequest naming the first that is none."""
    if len(entries) > ENTRIES_MAX:
        raise InvalidRequest(f"network: {len(entries)} entries, at most {ENTRIES_MAX}")
    return tuple(map(parse_entry, entries))
