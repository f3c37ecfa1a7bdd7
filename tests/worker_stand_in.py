"""A worker for tests of the node's half: a real process with the real model's side and a record on disk.

What a trainer does comes over the same socket:

    GET  /asked               every request so far: sandbox, ordinal, body
    POST /answers/N/SANDBOX   the answer to ordinal N
    POST /mode                {"echo": true}: from now on it answers by itself, with the ordinal and how
                              many were asked; {"resume": true}: answers resume their sandbox;
                              {"bugs": 2}: twice each step fails as nobody meant it to
    GET  /pid, GET /slow?bytes=N&pieces=M, POST /echo
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from skerry.errors import NotFound, Unauthorized
from skerry.worker.aside import Aside
from skerry.worker.model.answers import complete
from skerry.worker.model.book import Answer, Asked, Note
from skerry.worker.model.handler import ModelHandler


class Given(msgspec.Struct, tag="given"):
    sandbox: str
    ordinal: int
    answer: Answer


class Noted(msgspec.Struct, tag="noted"):
    sandbox: str
    notes: list[Note]


class Mode(msgspec.Struct, tag="mode"):
    echo: bool = False
    resume: bool = False
    rollouts: list[str] = []  # empty: every sandbox is one
    bugs: int = 0  # so often it breaks where it should record, and so often where it should answer


class FileBook:
    """A book that is one file, written before anything is said."""

    def __init__(self, path: Path) -> None:
        self.notes_of: dict[str, list[Note]] = {}
        self.given: dict[tuple[str, int], Answer] = {}
        self.mode = Mode()
        self.bugs: Counter[str] = Counter()
        self.moved = asyncio.Event()
        self._path = path
        for line in path.read_bytes().splitlines() if path.exists() else ():
            self._take(msgspec.json.decode(line, type=Given | Noted | Mode))
        self._file = path.open("ab", buffering=0)

    def write(self, entry: Given | Noted | Mode) -> None:
        self._file.write(msgspec.json.encode(entry) + b"\n")
        self._take(entry)
        self.moved.set()
        self.moved = asyncio.Event()

    def _take(self, entry: Given | Noted | Mode) -> None:
        if isinstance(entry, Given):
            self.given[entry.sandbox, entry.ordinal] = entry.answer
        elif isinstance(entry, Noted):
            self.notes_of.setdefault(entry.sandbox, []).extend(entry.notes)
        else:
            self.mode = entry

    def asked(self, sandbox: str) -> list[Asked]:
        return [note for note in self.notes_of.get(sandbox, ()) if isinstance(note, Asked)]

    # -- Book -----------------------------------------------------------------------------------------

    def rollout(self, sandbox: str, token: str) -> str:
        if self.mode.rollouts and sandbox not in self.mode.rollouts:
            raise NotFound("no sandbox of this worker")
        if token != "key":
            raise Unauthorized("not this rollout's key")
        return sandbox

    def models(self, rollout: str) -> Sequence[str]:
        return ("policy",)

    def notes(self, rollout: str) -> Iterable[Note]:
        return tuple(self.notes_of.get(rollout, ()))

    def _break(self, where: str) -> None:
        self.bugs[where] += 1
        if self.bugs[where] <= self.mode.bugs:
            raise RuntimeError(where)

    async def note(self, rollout: str, notes: Sequence[Note]) -> None:
        self._break("note")
        self.write(Noted(rollout, list(notes)))
        for note in notes:
            if self.mode.echo and isinstance(note, Asked):
                self.give(rollout, note.ordinal, f"{note.ordinal} of {len(self.asked(rollout))}")

    async def answer(self, rollout: str, ordinal: int) -> Answer:
        while (rollout, ordinal) not in self.given:
            await self.moved.wait()
        self._break("answer")
        return self.given[rollout, ordinal]

    def resumes(self, rollout: str) -> bool:
        return self.mode.resume

    def give(self, sandbox: str, ordinal: int, given: Any) -> None:
        if (sandbox, ordinal) not in self.given:
            self.write(Given(sandbox, ordinal, complete(self.asked(sandbox)[ordinal], given)))


def application(book: FileBook) -> web.Application:
    async def asked(request: web.Request) -> web.Response:
        found = [
            {"sandbox": sandbox, "ordinal": note.ordinal, "body": msgspec.json.decode(note.body)}
            for sandbox in book.notes_of
            for note in book.asked(sandbox)
        ]
        return web.json_response(found)

    async def give(request: web.Request) -> web.Response:
        ordinal, sandbox = int(request.match_info["n"]), request.match_info["sandbox"]
        book.give(sandbox, ordinal, await request.json())
        return web.json_response({})

    async def mode(request: web.Request) -> web.Response:
        book.write(msgspec.convert(await request.json(), Mode))
        return web.json_response({})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"pid": os.getpid()})

    async def slow(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        for _ in range(int(request.query["pieces"])):
            await answer.write(b"x" * int(request.query["bytes"]))
            await asyncio.sleep(0.02)
        return answer

    async def echo(request: web.Request) -> web.Response:
        told = {
            "body": (await request.read()).decode(),
            "query": request.rel_url.raw_query_string,
            "tenant": request.headers.get("X-Skerry-Tenant"),
            "sandbox": request.headers.get("X-Skerry-Sandbox"),
        }
        return web.json_response(told, status=201)

    app = web.Application(client_max_size=64 << 20)
    app.add_routes(
        [
            *ModelHandler(book, Aside()).routes(),
            web.get("/asked", asked),
            web.post("/answers/{n}/{sandbox}", give),
            web.post("/mode", mode),
            web.get("/health", health),
            web.get("/slow", slow),
            web.post("/echo", echo),
        ]
    )
    return app


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("socket", "state", "node"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--orphan-after")
    options = parser.parse_args()
    runner = web.AppRunner(application(FileBook(Path(options.state, "book"))), access_log=None)
    await runner.setup()
    Path(options.socket).unlink(missing_ok=True)
    await web.UnixSite(runner, options.socket).start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    os._exit(0)  # what is on disk is all there is


if __name__ == "__main__":
    asyncio.run(main())
