"""What the network of sandboxes needs of a host."""

from __future__ import annotations

import importlib.util
import ipaddress
import shutil
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from skerry.cli.findings import Check
from skerry.errors import SkerryError
from skerry.network.addresses import not_public
from skerry.network.discover import discover
from skerry.network.services import NetworkConfig, Service, Services
from skerry.spec.network import check_network

CLIENTS: Final = {"pypi": "pip", "npm": "npm", "debian": "apt-get"}
NAME: Final = "network services"
Discover = Callable[[str], Service]
Lookup = Callable[[str], list[str]]


class _Host(NamedTuple):
    """One host that a word of `network=` allows, and what hinders sandboxes from using it."""

    word: str
    host: str
    told: str  # empty if nothing does
    private: bool = False


def services_check(
    config: NetworkConfig | None = None,
    discover: Discover = discover,
    lookup: Lookup | None = None,
) -> Check:
    """The words of `network=` that mean what this machine's own package clients are set to.

    Asks the clients where they go, and the host's resolver where that is; connects to nothing. A
    node connects sandboxes to public addresses only, unless `config` lets the name be private.
    """
    config = config or NetworkConfig()
    absent = [word for word in CLIENTS if word not in config.services and not _has_client(word)]
    if absent:
        words = ", ".join(absent)
        return Check(
            NAME,
            "note",
            f"no {', '.join(CLIENTS[word] for word in absent)} here to learn from",
            f"network= refuses {words}",
            f"[network.services.{absent[0]}] in the node's configuration (docs/guide/network.md)",
        )
    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        asked = pool.map(lambda word: _asked(word, config, discover, lookup or _lookup), CLIENTS)
        return _found([host for hosts in asked for host in hosts])


def _found(hosts: list[_Host]) -> Check:
    asked: dict[str, list[str]] = {}
    for one in hosts:
        asked.setdefault(one.word, []).append(one.host or "not learned")
    looked_up = ", ".join(f"{word} ({', '.join(names)})" for word, names in asked.items())
    bad: dict[str, list[_Host]] = {}
    for one in hosts:
        if one.told:
            bad.setdefault(one.told, []).append(one)
    if not bad:
        return Check(NAME, "ok", f"{looked_up}: as this machine has them, at public addresses")
    told = "; ".join(
        f"{', '.join(one.host or one.word for one in those)}: {why}" for why, those in bad.items()
    )
    hindered = [one for those in bad.values() for one in those]
    words = ", ".join(dict.fromkeys(one.word for one in hindered))
    private = [f'"{one.host}"' for one in hindered if one.private]
    remedy = f"[network.services.{hindered[0].word}] in the node's configuration"
    if private:
        remedy = (
            f"[network] private = [{', '.join(dict.fromkeys(private))}] in the node's "
            "configuration, if that is meant"
        )
    return Check(
        NAME,
        "warning",
        f"{looked_up}; {told}",
        f"sandboxes with network {words} are refused there: public addresses only"
        if private
        else f"sandboxes with network {words} reach nothing there",
        f"{remedy} (docs/guide/network.md)",
    )


def _asked(word: str, config: NetworkConfig, discover: Discover, lookup: Lookup) -> Iterable[_Host]:
    """Returns the hosts of a word: what the operator says it means, or the client."""
    try:
        service = config.services.get(word) or discover(word)
    except SkerryError as error:
        return [_Host(word, "", error.message)]
    names = Services(config, discover)
    hosts = dict.fromkeys(
        entry.host for entry in check_network(service.hosts) if not entry.wildcard
    )
    return [_one(word, host, config, names, lookup) for host in hosts]


def _one(word: str, host: str, config: NetworkConfig, names: Services, lookup: Lookup) -> _Host:
    if host in config.addresses or names.may_be_private(host):
        return _Host(word, host, "")
    try:
        addresses = lookup(host)
    except OSError as error:
        return _Host(word, host, f"not found ({error.strerror or error})")
    reasons = {text: not_public(ipaddress.ip_address(text.partition("%")[0])) for text in addresses}
    if any(reason is None for reason in reasons.values()):
        return _Host(word, host, "")  # a node tries the public ones
    told = ", ".join(f"{text}, {reason}" for text, reason in list(reasons.items())[:2])
    return _Host(word, host, f"at {told}", private=True)


def _has_client(word: str) -> bool:
    program = CLIENTS[word]
    if program == "pip" and importlib.util.find_spec("pip") is not None:
        return True
    return shutil.which(program) is not None


def _lookup(host: str) -> list[str]:
    found = socket.getaddrinfo(f"{host}.", None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
