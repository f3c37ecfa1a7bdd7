"""The examples of README.md and docs/guide, for the tests that try them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs/guide").glob("*.md")))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WORDS = re.compile(r"`(skerry [^`\n]+)`")


class Block(NamedTuple):
    """One fenced block: where its fence opens, its language ("" for shell), its text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.name}:{self.line}"


def runs_here(block: Block) -> bool:
    """Whether it needs no harness: those that do are run by interop/, where the harness is."""
    return "skerry.compat" not in block.text


def blocks(language: str) -> list[Block]:
    """Returns all blocks of a language."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(page, line, language, match[2]))
    return found


def command_lines() -> list[tuple[str, str]]:
    """Returns every `skerry ...` of blocks and of running text, with where it stands."""
    found = [
        (block.name, line.strip())
        for block in blocks("")
        for line in block.text.splitlines()
        if line.strip().startswith("skerry ")
    ]
    for page in PAGES:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            found += [(f"{page.name}:{number}", text) for text in _WORDS.findall(line)]
    return found
