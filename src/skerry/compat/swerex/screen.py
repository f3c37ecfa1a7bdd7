"""What a terminal has shown since somebody looked: bounded, and searched for patterns as it comes."""

from __future__ import annotations

import asyncio
import re

KEPT_MAX = 4 << 20  # characters; of more the middle is cut out
SEARCHED_MAX = 64 << 10  # a pattern is looked for in the last so many
_ESCAPES = re.compile(r"\x1b[@-_][0-?]*[ -/]*[@-~]")


class Gone(Exception):
    """The program on the terminal has ended."""


class Screen:
    """Characters that come and are taken by who waits for a pattern."""

    def __init__(self) -> None:
        self._text = ""
        self._cut = 0
        self._news = asyncio.Event()
        self._over = False

    def add(self, text: str) -> None:
        """Takes what the terminal shows."""
        self._text += text
        if len(self._text) > KEPT_MAX:
            head, tail = KEPT_MAX // 4, KEPT_MAX // 2
            self._cut += len(self._text) - head - tail
            self._text = self._text[:head] + self._text[-tail:]
        self._news.set()

    def end(self) -> None:
        """Nothing comes any more."""
        self._over = True
        self._news.set()

    async def expect(
        self,
        patterns: list[re.Pattern[str]],
        timeout: float | None,  # noqa: ASYNC109
    ) -> tuple[str, int, re.Match[str]]:
        """Returns what came before the earliest match, which pattern it was, and the match.

        All of it is taken. TimeoutError leaves everything as it is; Gone when the program has ended.
        """
        searched = 0
        async with asyncio.timeout(timeout):
            while True:
                self._news.clear()
                begin = max(0, min(searched, len(self._text)) - SEARCHED_MAX)
                found = [
                    (match.start(), number, match)
                    for number, pattern in enumerate(patterns)
                    if (match := pattern.search(self._text, begin))
                ]
                if found:
                    _, number, match = min(found, key=lambda item: item[:2])
                    before = self._cleaned(self._text[: match.start()])
                    self._text = self._text[match.end() :]
                    self._cut = 0
                    return before, number, match
                if self._over:
                    raise Gone(self.take())
                searched = len(self._text)
                await self._news.wait()

    def take(self) -> str:
        """Returns all that came, and takes it."""
        text, self._text = self._cleaned(self._text), ""
        self._cut = 0
        return text

    def _cleaned(self, text: str) -> str:
        if self._cut:
            head = KEPT_MAX // 4
            gap = f"\n[... {self._cut} characters were cut out here ...]\n"
            text = text[:head] + gap + text[head:]
        return _ESCAPES.sub("", text).replace("\r\n", "\n")
