"""One sandbox's way out: takes the connections to its proxy port, decides, carries.

Plain HTTP requests are read and written anew, so that server and proxy cannot read them in two
ways; each request of a kept connection is decided anew. CONNECT carries TLS only, and only to the
name that was asked for. Nothing is held back: memory is bounded by one piece each way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import h11

from skerry.errors import InvalidRequest, SkerryError
from skerry.network import http, tunnel
from skerry.network.addresses import not_public
from skerry.network.decision import Decisions
from skerry.network.dial import Dialer, Failed, Refused, Stream, Upstream
from skerry.network.policy import Policy, Rule
from skerry.network.target import Target, of_request
from skerry.spec.network import EVERYTHING
from skerry.wire.network import NetworkView

HEAD_S = 30.0  # from the first byte of a connection, or the end of an exchange, to a whole request
LINGER_S = 2.0  # for a client to read a refusal before its connection is gone
LINGER_BYTES = 1 << 20
LOOKUPS_MAX = 4  # names that one sandbox has looked up at once


class Answer(Exception):
    """The proxy's own answer; ends the connection."""

    def __init__(self, status: int, phrase: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.phrase = phrase

    def payload(self) -> bytes:
        """Returns the whole response."""
        body = f"skerry: {self}\n".encode("ascii", "replace")
        head = f"HTTP/1.1 {self.status} {self.phrase}\r\nContent-Type: text/plain\r\n"
        head += f"Content-Length: {len(body)}\r\nProxy-Connection: close\r\nConnection: close\r\n"
        return head.encode("ascii", "replace") + b"\r\n" + body


class Places:
    """What all gateways have together: connections, each a descriptor of the node, and counts."""

    def __init__(self, total_max: int) -> None:
        self.total_max = total_max
        self.taken = 0
        self.counts: Counter[str] = Counter()  # decisions by their verdict


class Bounds(NamedTuple):
    """Of one gateway; as in NetworkConfig."""

    connections_max: int
    header_bytes_max: int
    idle_s: float


class Visit:
    """One connection from inside: what it goes to now, and how it is cut."""

    def __init__(self, stream: Stream, guard: asyncio.Timeout, idle_s: float) -> None:
        self.stream = stream
        self.target: Target | None = None
        self.upstream: Upstream | None = None
        self.cut = False
        self._guard = guard
        self._idle_s = idle_s

    def allow(self, seconds: float) -> None:
        """Gives what comes next that long."""
        self._guard.reschedule(asyncio.get_running_loop().time() + seconds)

    def moved(self) -> None:
        """A byte has moved: the idle time begins anew."""
        self.allow(self._idle_s)

    def end(self) -> None:
        """Cuts it: its policy does not allow it any more."""
        self.cut = True
        if self.upstream is not None:
            self.upstream.reset()
        self.stream.reset()


class Gateway:
    """Serves the proxy port of one sandbox. Invariant: at most `connections_max` visits."""

    def __init__(
        self,
        dialer: Dialer,
        decisions: Decisions,
        bounds: Bounds,
        places: Places,
        touch: Callable[[], None],
    ) -> None:
        self.policy = Policy()
        self.entries: tuple[str, ...] = ()
        self._dialer = dialer
        self._decisions = decisions
        self._bounds = bounds
        self._places = places
        self._lookups = asyncio.Semaphore(LOOKUPS_MAX)
        self._touch = touch
        self._visits: set[Visit] = set()

    def change(self, entries: tuple[str, ...], policy: Policy) -> None:
        """The policy from now on; open connections that it does not allow are cut."""
        self.entries, self.policy = entries, policy
        for visit in tuple(self._visits):
            target = visit.target
            if target is not None and not _still_allowed(visit, target, policy):
                self._decisions.add(
                    "refused",
                    method="CUT",
                    host=target.host,
                    port=target.port,
                    why="the policy was changed while it was open",
                )
                visit.end()

    def view(self) -> NetworkView:
        """Returns what there is to see."""
        return NetworkView(
            network=self.entries,
            hosts=tuple(sorted({_shown(rule) for rule in self.policy.rules})),
            open_connections=len(self._visits),
            totals=self._decisions.totals(),
            decisions=self._decisions.last(),
        )

    async def serve(self, stream: Stream) -> None:
        """Serves one connection from inside to its end; never raises for what comes from there."""
        full = self._full()
        if full is not None:
            await _say(stream, Answer(503, "Too many connections", full))
            return
        self._touch()
        with contextlib.suppress(TimeoutError, SkerryError, Failed):
            async with asyncio.timeout(HEAD_S) as guard:
                visit = Visit(stream, guard, self._bounds.idle_s)
                self._visits.add(visit)
                self._places.taken += 1
                try:
                    await self._requests(visit)
                except Answer as answer:
                    visit.allow(LINGER_S)
                    await _say(stream, answer)
                finally:
                    self._visits.discard(visit)
                    self._places.taken -= 1
                    if visit.upstream is not None:
                        visit.upstream.reset()
                    self._touch()

    def _full(self) -> str | None:
        """Returns why there is no room for another connection, or None."""
        if len(self._visits) >= self._bounds.connections_max:
            return f"{self._bounds.connections_max} connections of this sandbox are open already"
        if self._places.taken >= self._places.total_max:
            return f"{self._places.total_max} connections of all sandboxes are open already"
        return None

    async def _requests(self, visit: Visit) -> None:
        inside = http.Side(h11.SERVER, visit.stream, self._bounds.header_bytes_max)
        while True:
            visit.allow(HEAD_S)
            try:
                request = await inside.event()
            except h11.RemoteProtocolError as error:
                raise self._malformed(str(error), error.error_status_hint) from None
            if not isinstance(request, h11.Request):
                await visit.stream.write_eof()
                return
            method = request.method.decode("ascii", "replace")
            try:
                target = of_request(request.method, request.target, request.headers)
            except InvalidRequest as error:
                raise self._malformed(error.message, 400, method) from None
            upstream = await self._open(visit, method, target)
            visit.moved()
            if request.method == b"CONNECT":
                await self._tunnel(visit, inside, upstream, target)
                return
            if not await self._exchange(visit, inside, upstream, request, target):
                return

    async def _open(self, visit: Visit, method: str, target: Target) -> Upstream:
        """Returns a new connection to an allowed target: one a request, so none is ever stale."""
        rule = self._rule(method, target)
        visit.target = target
        # One address after the other may be tried, each with a limit of its own.
        visit.allow(self._bounds.idle_s)
        try:
            upstream = await self._dialer.dial(
                target.host, target.port, self._lookups, named=rule.named
            )
        except Refused as error:
            raise self._refused(method, target, f"{error}", leads=True) from None
        except Failed as error:
            raise self._failed(method, target, f"{error}") from None
        visit.upstream = upstream
        if visit.cut:
            raise self._refused(method, target, "the policy was changed meanwhile")
        self._allowed(method, target, rule, upstream)
        return upstream

    async def _tunnel(
        self, visit: Visit, inside: http.Side, upstream: Upstream, target: Target
    ) -> None:
        await visit.stream.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        visit.allow(HEAD_S)
        try:
            hello = await tunnel.hello(visit.stream, inside.rest(), target.host)
        except tunnel.WrongServer as error:
            self._refused("CONNECT", target, f"{error}")
            visit.allow(LINGER_S)
            await visit.stream.write(tunnel.ALERT)
            await _finish(visit.stream)
            return
        await upstream.write(hello)
        await tunnel.carry(visit.stream, upstream, visit.moved)

    async def _exchange(
        self,
        visit: Visit,
        inside: http.Side,
        upstream: Upstream,
        request: h11.Request,
        target: Target,
    ) -> bool:
        """Carries a request and its answer; returns whether the connection goes on."""
        outside = http.Side(h11.CLIENT, upstream, self._bounds.header_bytes_max)
        exchange = http.Exchange(inside, outside, visit.moved)
        try:
            await exchange.carry(request, target)
        except (Failed, h11.RemoteProtocolError, h11.LocalProtocolError) as error:
            method = request.method.decode("ascii", "replace")
            answer = self._failed(method, target, str(error))
            if exchange.answered:  # half an answer is out: only its breaking off says the truth
                visit.stream.reset()
                return False
            raise answer from None
        upstream.reset()
        visit.upstream = visit.target = None
        if inside.next_cycle():
            return True
        visit.allow(LINGER_S)
        await _finish(visit.stream)
        return False

    # -- decisions --------------------------------------------------------------------------------

    def _rule(self, method: str, target: Target) -> Rule:
        rule = self.policy.allows(target.host, target.port)
        if rule is not None:
            return rule
        if self.policy.knows(target.host):
            raise self._refused(method, target, f"no entry allows port {target.port} of it")
        allowed = ", ".join(self.entries)[:200] or "nothing"
        raise self._refused(method, target, f"no entry of its network policy ({allowed}) allows it")

    def _allowed(self, method: str, target: Target, rule: Rule, upstream: Upstream) -> None:
        self._decisions.add(
            "allowed",
            method=method,
            host=target.host,
            port=target.port,
            why=rule.source,
            address=str(upstream.address),
        )

    def _refused(self, method: str, target: Target, why: str, *, leads: bool = False) -> Answer:
        """Records a refusal and returns its answer; `leads`: the name is allowed, its address is not."""
        self._decisions.add("refused", method=method, host=target.host, port=target.port, why=why)
        name = target.host if target.port in (80, 443) else f"{target.host}:{target.port}"
        told = f"{target.host} port {target.port} is not reachable from this sandbox: {why}.\n"
        phrase = f"Blocked by the network policy of this sandbox: {name}"
        if leads:
            text = (
                told
                + "Who runs the node may allow that with `private` or `addresses` of [network]."
            )
            return Answer(403, f"{phrase} leads to an address that is not public", text)
        text = told + (
            f"To allow a name, whoever owns the sandbox adds an entry such as {name!r} to "
            "network=, also while it lives (skerry network ID --allow ENTRY)."
        )
        return Answer(403, phrase, text)

    def _failed(self, method: str, target: Target, why: str) -> Answer:
        self._decisions.add("failed", method=method, host=target.host, port=target.port, why=why)
        text = f"{target.host} port {target.port} is allowed, but: {why}"
        return Answer(502, "The server could not be reached", text)

    def _malformed(self, why: str, status: int, method: str = "?") -> Answer:
        self._decisions.add("refused", method=method, host="", port=0, why=why)
        phrase = "Request header too large" if status == 431 else "Bad request to the proxy"
        return Answer(status, phrase, why)


def _still_allowed(visit: Visit, target: Target, policy: Policy) -> bool:
    rule = policy.allows(target.host, target.port)
    if rule is None or rule.named:
        return rule is not None
    return visit.upstream is not None and not_public(visit.upstream.address) is None


def _shown(rule: Rule) -> str:
    port = "" if rule.port is None else f":{rule.port}"
    if not rule.named:
        return f"{EVERYTHING}{port}"
    return f"{'*.' if rule.wildcard else ''}{rule.host}{port}"


async def _say(stream: Stream, answer: Answer) -> None:
    with contextlib.suppress(SkerryError, TimeoutError):
        async with asyncio.timeout(LINGER_S):
            await stream.write(answer.payload())
            await _finish(stream)


async def _finish(stream: Stream) -> None:
    """Ends our half and reads on for a moment: a close with unread bytes takes the answer back."""
    await stream.write_eof()
    left = LINGER_BYTES
    while left > 0 and (data := await stream.read()):
        left -= len(data)
