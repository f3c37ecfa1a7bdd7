"""Nodes without some of their protections, started when they are first wanted."""

from __future__ import annotations

import sys
from pathlib import Path

from live_node import LiveNode
from native_build import NATIVE, build

HERE = Path(__file__).parent


class WeakNodes:
    """By the words of what they lack. `stop` ends them all and returns what they left."""

    def __init__(self, store: str, place: Path) -> None:
        self._store = store
        self._place = place
        self._nodes: dict[str, LiveNode] = {}

    def node(self, words: str) -> LiveNode:
        """Returns the node that lacks these protections; blocks while it starts."""
        if words not in self._nodes:
            build("weak")
            place = self._place / words.replace(",", "-")
            place.mkdir(parents=True)
            pair = NATIVE / "build/weak"
            (place / "skerry-spawn").write_text(
                f'#!/bin/sh\nSKERRY_WEAK={words} exec {pair}/skerry-spawn "$@"\n'
            )
            (place / "skerry-spawn").chmod(0o755)
            (place / "skerry-init").symlink_to(pair / "skerry-init")
            program = (sys.executable, str(HERE / "weak_node.py"), str(place))
            self._nodes[words] = LiveNode(self._store, program=program).start()
        return self._nodes[words]

    def stop(self) -> list[str]:
        """Ends them; blocks."""
        return [line for made in self._nodes.values() for line in made.stop()]
