"""What a client still has to tell its node about iterations and calls that were left early.

Leaving `async for` by a break runs the end of its generator some time later, in a task of the loop's
own that nothing waits for; a client that is closed at once would be faster. So what that end has to
say is written down first, and said by whoever comes first: that end, or the closing of the client.
A call that was cancelled may be cancelled again and again while it tidies up (AnyIO does so until the
task has left the scope): what it has to say is said by a task of its own, and closing waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Pay = Callable[[], Coroutine[Any, Any, None]]


class Debts:
    """Invariant: an entry is what nobody has said yet, or what is being said."""

    def __init__(self) -> None:
        self._open: set[Debt] = set()

    def owe(self, pay: Pay) -> Debt:
        """Writes down what has to be said unless `settle` tells otherwise; `pay` bounds its time."""
        debt = Debt(self._open, pay)
        self._open.add(debt)
        return debt

    async def say(self, pay: Pay) -> None:
        """Says it; one who is cancelled meanwhile does not take it back."""
        await self.owe(pay).pay()

    async def pay(self) -> None:
        """Returns when everything has been said; asked on the loop on which it was owed."""
        if self._open:
            await asyncio.gather(*(debt.pay() for debt in list(self._open)))


class Debt:
    """One thing to say, at most once."""

    def __init__(self, open_: set[Debt], pay: Pay) -> None:
        self._open = open_
        self._pay = pay
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    async def settle(self, *, owed: bool) -> None:
        """The iteration has ended: says it if it is still `owed`, else forgets it."""
        if owed:
            await self.pay()
        else:
            self._open.discard(self)

    async def pay(self) -> None:
        """Returns when it was said; one who waits no longer does not take it back."""
        if self._loop is not asyncio.get_running_loop():
            self._open.discard(self)  # a loop that has ended, with its generators
            return
        if self._task is None:
            if self not in self._open:
                return
            self._task = asyncio.create_task(self._pay())
            self._task.add_done_callback(lambda _: self._open.discard(self))
        await asyncio.shield(self._task)
