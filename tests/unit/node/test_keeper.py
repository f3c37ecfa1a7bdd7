"""What the node owes its layer store: leases renewed, collections now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from node_stand import ManualClock, settle

from skerry.errors import StorageFailed
from skerry.node.keeper import RENEW_S, Keeper
from skerry.spec.layers import CollectReport
from waiting import until

NOTHING = CollectReport(dry_run=False, removed=(), kept=(), freed_bytes=7, kept_bytes=0)


class Book:
    """Leases that write down what they are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, tuple[str, ...]]] = []
        self.away = False

    def note(self, what: str, live: Collection[str] = ()) -> None:
        if self.away:
            raise StorageFailed("the store is away")
        self.told.append((what, tuple(sorted(live))))

    def recall(self) -> None:
        self.note("recall")

    def settle(self, live: Collection[str]) -> None:
        self.note("settle", live)

    def renew(self, live: Collection[str] | None = None) -> float:
        self.note("renew", live or ())
        return 0.0

    def drop(self) -> None:
        self.note("drop")


class Sweeper:
    def __init__(self) -> None:
        self.collected = 0
        self.ago: float | None = None

    def look(self) -> CollectReport:
        return NOTHING

    def collect(self, log: Callable[[str], None]) -> CollectReport:
        self.collected += 1
        return NOTHING

    def collected_ago_s(self) -> float | None:
        return self.ago


def keeper_of(book: Book, sweeper: Sweeper, live: set[str], clock: ManualClock) -> Keeper:
    return Keeper(book, sweeper, lambda: live, clock, collect_every_s=3600.0, collect_after_s=20.0)


async def test_layers_of_sandboxes_are_named_until_the_last_has_gone() -> None:
    book, clock, live = Book(), ManualClock(), {"a"}
    keeper = keeper_of(book, Sweeper(), live, clock)
    await keeper.recall()
    async with keeper.working():
        await settle()
        assert book.told == [("recall", ()), ("settle", ("a",))]
        live.add("b")
        await clock.advance(RENEW_S)
        await until(lambda: book.told[-1] == ("renew", ("a", "b")))
    await keeper.end()
    assert book.told[-1] == ("renew", ("a", "b"))  # sandboxes outlive the node: so does the lease
    live.clear()
    await keeper.end()
    assert book.told[-1] == ("drop", ())


async def test_store_that_is_away_at_first_is_settled_with_when_it_is_back() -> None:
    book, clock = Book(), ManualClock()
    book.away = True
    keeper = keeper_of(book, Sweeper(), {"a"}, clock)
    await keeper.recall()
    async with keeper.working():
        await settle()
        assert book.told == []
        book.away = False
        await clock.advance(RENEW_S)
        await until(lambda: book.told == [("settle", ("a",))])


async def test_removal_is_collected_a_little_later_and_once() -> None:
    sweeper, clock = Sweeper(), ManualClock()
    keeper = keeper_of(Book(), sweeper, set(), clock)
    async with keeper.working():
        await settle()
        for _ in range(3):
            keeper.collect_soon()
        await settle()
        await clock.advance(19)
        assert sweeper.collected == 0
        await clock.advance(2)
        await until(lambda: sweeper.collected == 1)
        await clock.advance(100)
        assert sweeper.collected == 1
    assert (keeper.collections, keeper.freed_bytes) == (1, 7)


async def test_collection_that_another_node_has_just_done_is_left_out() -> None:
    sweeper, clock = Sweeper(), ManualClock()
    sweeper.ago = 60.0
    keeper = keeper_of(Book(), sweeper, set(), clock)
    async with keeper.working():
        await settle()
        await clock.advance(3601)
        await asyncio.sleep(0.1)
        assert sweeper.collected == 0
        sweeper.ago = 3600.0
        await clock.advance(3601)
        await until(lambda: sweeper.collected == 1)
