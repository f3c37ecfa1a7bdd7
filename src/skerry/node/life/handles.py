"""Handles of operations: never used twice in the life of an instance, over restarts too."""

from __future__ import annotations

from skerry.errors import SandboxFailed
from skerry.node import ledger
from skerry.node.ledger import Ledger
from skerry.node.life.sandbox import HANDLES_BLOCK, Sandbox
from skerry.wire.streams import HANDLE_MAX


class Handles:
    """Gives out handles in blocks: the journal knows a block before its first one is used."""

    def __init__(self, entries: Ledger) -> None:
        self._ledger = entries

    def new(self, sandbox: Sandbox) -> int:
        """Returns a handle that was never used; SandboxFailed when there are no more."""
        handle = sandbox.handle_next
        if handle >= HANDLE_MAX:
            raise SandboxFailed("the sandbox has run 2^29 operations; make a new one")
        if handle >= sandbox.handle_top:
            top = handle + HANDLES_BLOCK
            self._ledger.append(sandbox.id, ledger.Handles(top))
            sandbox.handle_top = top
        sandbox.handle_next = handle + 1
        return handle
