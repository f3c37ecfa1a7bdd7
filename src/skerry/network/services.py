"""Service words and what else the operator says about the network."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from skerry.errors import InvalidRequest, Unavailable
from skerry.network.addresses import never_reachable
from skerry.network.policy import Policy, Rule
from skerry.spec.network import Entry, canonical_host, check_network, parse_entry
from skerry.spec.sandbox import check_env


@dataclass(frozen=True, kw_only=True)
class Service:
    """What a service word allows, and what is set inside where it is allowed."""

    hosts: tuple[str, ...]  # entries as of a user, but no words
    env: dict[str, str] = field(default_factory=dict)  # e.g. PIP_INDEX_URL of a mirror
    apt: dict[str, str] = field(default_factory=dict)  # DEBIAN_URI, DEBIAN_SECURITY_URI


# Words that mean what this machine's own package clients are set to, unless the operator says.
DISCOVERED = ("pypi", "npm", "debian")
# The word for all that builds of images may reach; what it stands for is the operator's choice.
BUILD = "build"


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The operator's part: services, names with addresses of their own, bounds of the proxy."""

    services: dict[str, Service] = field(default_factory=dict)  # beside, or instead of, DISCOVERED
    # Names that are never looked up. Private addresses are allowed here: you wrote them.
    addresses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    build: tuple[str, ...] = DISCOVERED  # what the word `build` stands for
    private: tuple[str, ...] = ()  # names that may have private addresses, e.g. "*.corp.example"
    port: int = 3128  # of the proxy, on the loopback inside
    connections_max: int = 200  # open at once, a sandbox; more are answered with 503
    connections_node_max: int = 4096  # and of all sandboxes together
    header_bytes_max: int = 16_384  # of one request's or answer's head
    idle_s: float = 300.0  # a connection without a byte for that long is closed
    decisions_max: int = 256  # remembered of each sandbox

    def check(self) -> NetworkConfig:
        """Returns itself if it makes sense; raises InvalidRequest naming what does not."""
        for word, service in self.services.items():
            if parse_entry(word).word is None:
                raise InvalidRequest(f"network.services: {word!r} is no word of a-z, 0-9 and -")
            if any(entry.word is not None for entry in check_network(service.hosts)):
                raise InvalidRequest(f"network.services.{word}: hosts must be names, not words")
            check_env(service.env)
        if BUILD in self.services or any(
            entry.word == BUILD for entry in check_network(self.build)
        ):
            raise InvalidRequest("network: what `build` stands for is the list network.build")
        for name, addresses in self.addresses.items():
            if canonical_host(name) != name or not addresses:
                raise InvalidRequest(f"network.addresses: {name!r} is no name, or has no address")
            for address in addresses:
                self._check_address(name, address)
        for text in self.private:
            _pattern(text)
        if not 1 <= self.port <= 65_535:
            raise InvalidRequest("network.port must be between 1 and 65535")
        for what, low, high in (
            ("connections_max", 1, 256),
            ("connections_node_max", 1, 1 << 20),
            ("header_bytes_max", 1024, 1 << 20),
            ("idle_s", 1, 86_400),
            ("decisions_max", 0, 100_000),
        ):
            if not low <= getattr(self, what) <= high:
                raise InvalidRequest(f"network.{what} must be between {low} and {high}")
        return self

    @staticmethod
    def _check_address(name: str, text: str) -> None:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            raise InvalidRequest(f"network.addresses.{name}: {text!r} is no address") from None
        if reason := never_reachable(address):
            raise InvalidRequest(f"network.addresses.{name}: {text} is {reason}")


def _pattern(text: str) -> Rule:
    """Returns the rule of a name or *.NAME of the operator's, for "port" 0; InvalidRequest."""
    wildcard = text.startswith("*.")
    try:
        return Rule(canonical_host(text[2:] if wildcard else text), wildcard, 0, text)
    except InvalidRequest as error:
        raise InvalidRequest(f"network.private: {error.message}") from None


class Services:
    """The services of a node: turns a user's entries into a policy and an environment.

    `discover` tells what a word of DISCOVERED means here; it blocks, and is asked once a word.
    """

    def __init__(self, config: NetworkConfig, discover: Callable[[str], Service]) -> None:
        self._known = dict(config.services)
        self._build = config.build
        self._private = Policy(map(_pattern, config.private))
        self._discover = discover
        self._learning = asyncio.Lock()

    async def learn(self, entries: tuple[str, ...]) -> None:
        """Finds out what the entries' words mean; raises InvalidRequest, Unavailable.

        Afterwards `policy` and `chosen` know all of them.
        """
        for entry in check_network(entries):
            if entry.word == BUILD:
                for one in check_network(self._build):
                    with contextlib.suppress(Unavailable):  # a machine need not have npm
                        await self._learn(one)
            else:
                await self._learn(entry)

    async def _learn(self, entry: Entry) -> None:
        if entry.word is None:
            return
        async with self._learning:
            if entry.word in DISCOVERED and entry.word not in self._known:
                self._known[entry.word] = await asyncio.to_thread(self._discover, entry.word)
        self._service(entry.word)

    def policy(self, entries: tuple[str, ...]) -> Policy:
        """Returns the policy; InvalidRequest for a malformed entry or an unknown word."""
        rules = []
        for entry in self._entries(entries):
            if entry.word is None:
                rules.append(Rule.of(entry, entry.text))
            else:
                hosts = check_network(self._service(entry.word).hosts)
                rules += [Rule.of(host, entry.word) for host in hosts]
        return Policy(rules)

    def chosen(self, entries: tuple[str, ...]) -> Iterable[Service]:
        """Yields the services that the entries name, in their order."""
        for entry in self._entries(entries):
            if entry.word is not None:
                yield self._service(entry.word)

    def may_be_private(self, host: str) -> bool:
        """Returns whether the operator lets this name have private addresses."""
        return self._private.allows(host, 0) is not None

    def _entries(self, entries: tuple[str, ...]) -> Iterable[Entry]:
        """Returns parsed entries, each once, with `build` replaced by what of it is known here."""
        parsed = check_network(entries)
        if all(entry.word != BUILD for entry in parsed):
            return parsed
        of_build = [one for one in check_network(self._build) if one.word in {None, *self._known}]
        return dict.fromkeys([one for one in (*parsed, *of_build) if one.word != BUILD])

    def _service(self, word: str) -> Service:
        service = self._known.get(word)
        if service is None:
            known = ", ".join(sorted({*self._known, *DISCOVERED, BUILD}))
            raise InvalidRequest(f"network: {word!r} is no service of this node; known: {known}")
        return service
