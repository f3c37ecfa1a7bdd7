"""The outside witness: a server on loopback that agents and trainers tell what they do, as they do it.

It knows nothing of jobs, books and trajectories: whoever restarted everything would have equal result
tables too. An agent draws a name for its life and one for each message; a trainer draws one for each
sampling. So a thing that was done twice has two names, and a message that was sent twice has one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

BODY_MAX = 64 * 1024

Turn = tuple[str, int]  # rollout, turn


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody says: an agent (began, asks, heard, ran, ended), a trainer (ready, got, gave)."""

    what: str
    note: str  # names the message
    life: str  # names the process
    rollout: str = ""
    turn: int = 0
    sample: str = ""  # names the sampling
    count: int = 0  # of commands that ran in the sandbox
    request: str = ""
    first: bool = False  # it was recorded now


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What the witness saw."""

    requests: int  # that reached an answer
    lost: int  # turns of agents that never came to an answer
    double: int  # turns that were run, sampled for the agent, or recorded more than once
    restarted: int  # lives of agents beyond the first
    lives: int  # of trainers
    reasons: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """True if nothing was lost, done twice or begun again."""
        return not (self.lost or self.double or self.restarted)


class Witness:
    """Takes facts, each once; judges them at the end."""

    def __init__(self) -> None:
        self._notes: set[str] = set()
        self._changed = asyncio.Event()
        self.url = ""
        self.port = 0
        self.trainers: list[str] = []  # that got as far as to ask for requests
        self.delivered: set[Turn] = set()
        self.heard: dict[Turn, list[str]] = defaultdict(list)  # samples
        self._lives: dict[str, set[str]] = defaultdict(set)
        self._asked: dict[Turn, int] = defaultdict(int)
        self._ran: dict[Turn, list[int]] = defaultdict(list)  # counts
        self._ended: dict[str, int] = defaultdict(int)
        self._names: dict[Turn, set[str]] = defaultdict(set)  # of requests, as trainers got them
        self._recorded: dict[Turn, list[str]] = defaultdict(list)  # samples

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listens on a port of loopback for a block."""
        app = web.Application(client_max_size=BODY_MAX)
        app.router.add_post("/", self._post)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.port = runner.addresses[0][1]
            self.url = f"http://127.0.0.1:{self.port}/"
            yield
        finally:
            await runner.cleanup()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns once it holds, looking each time when something was said."""
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    async def _post(self, request: web.Request) -> web.Response:
        try:
            self.take(msgspec.json.decode(await request.read(), type=Fact))
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=str(error))
        return web.json_response({})

    def take(self, fact: Fact) -> None:
        """Takes a fact; a message that is known already changes nothing."""
        if fact.note in self._notes:
            return
        self._notes.add(fact.note)
        at = (fact.rollout, fact.turn)
        match fact.what:
            case "began":
                self._lives[fact.rollout].add(fact.life)
            case "asks":
                self._asked[at] += 1
            case "heard":
                self.heard[at].append(fact.sample)
            case "ran":
                self._ran[at].append(fact.count)
            case "ended":
                self._ended[fact.rollout] += 1
            case "ready":
                self.trainers.append(fact.life)
            case "got":
                self.delivered.add(at)
                self._names[at].add(fact.request)
            case "gave" if fact.first:
                self._recorded[at].append(fact.sample)
            case _:
                pass
        self._changed.set()

    def judge(self, rollouts: int, turns: int) -> Judgement:
        """Returns what it comes to, if there were to be so many rollouts of so many requests each."""
        reasons: list[str] = []
        for rollout, lives in self._lives.items():
            if len(lives) > 1:
                reasons.append(f"{rollout} was begun {len(lives)} times")
        restarted = sum(len(lives) - 1 for lives in self._lives.values())
        double = 0
        for at in sorted({*self._asked, *self.heard, *self._ran, *self._names, *self._recorded}):
            twice = self._twice(at)
            double += bool(twice)
            reasons += [f"{at[0]} turn {at[1]}: {text}" for text in twice]
        lost = rollouts * turns - len(self.heard)
        reasons += [
            f"{at[0]} turn {at[1]}: no answer" for at in self._asked if at not in self.heard
        ]
        never = rollouts - len(self._ended)
        if never:
            reasons.append(f"{never} agents did not come to their ends")
        return Judgement(
            requests=len(self.heard),
            lost=max(lost, never, 0),
            double=double,
            restarted=restarted,
            lives=len(self.trainers),
            reasons=tuple(reasons),
        )

    def _twice(self, at: Turn) -> list[str]:
        """Returns what happened more than once in a turn, or to another answer than was recorded."""
        heard, ran = self.heard.get(at, []), self._ran.get(at, [])
        recorded = self._recorded.get(at, [])
        found = [
            f"{what}, {count} times"
            for what, count in (
                ("asked", self._asked.get(at, 0)),
                ("told an answer", len(heard)),
                ("run", len(ran)),
                ("given to trainers under several names", len(self._names.get(at, ()))),
                ("recorded", len(recorded)),
            )
            if count > 1
        ]
        if any(count != at[1] + 1 for count in ran):
            found.append(f"{ran} commands had run, not {at[1] + 1}")
        if recorded and set(heard) - set(recorded):
            found.append("the agent heard another answer than was recorded first")
        return found
