"""Which model requests are new and which are earlier ones once more."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import Conflict, Overloaded
from skerry.worker.model import ordinals as module
from skerry.worker.model.book import Again, Asked, Call, Failed, Handed, Note
from skerry.worker.model.ordinals import Incoming, Ordinals


class Rollout:
    """Ordinals and their record, with the node's view of who waits."""

    def __init__(self) -> None:
        self.ordinals = Ordinals()
        self.log: list[Note] = []
        self.waiting: set[str] = set()
        self.told: list[Handed] = []

    def ask(self, relay: str, digest: str = "d", *, retry: bool = False) -> int:
        self.waiting.add(relay)
        incoming = Incoming(
            call=Call.CHAT,
            digest=digest,
            relay=relay,
            body=b"{}",
            retry=retry,
            waiting=frozenset(self.waiting),
            handed=tuple(self.told),
        )
        ordinal, notes = self.ordinals.place(incoming, 1.0)
        self.ordinals.apply(notes)
        self.log += notes
        return ordinal

    def leave(self, relay: str) -> None:
        self.waiting.discard(relay)

    def hand(self, relay: str, *, held: bool = False) -> None:
        self.waiting.discard(relay)
        self.told.append(Handed(relay=relay, held=held))

    def restart(self) -> None:
        """The worker is killed and comes back with its record."""
        packed = msgspec.msgpack.encode(self.log)
        self.log = msgspec.msgpack.decode(packed, type=list[Note])
        self.ordinals = Ordinals(self.log)

    def lose_node(self) -> None:
        """The node is killed: every connection ends, and what it was about to tell is lost."""
        self.waiting.clear()
        self.told.clear()


def test_equal_requests_at_once_are_two_samplings() -> None:
    rollout = Rollout()
    assert [rollout.ask("a"), rollout.ask("b")] == [0, 1]


def test_equal_requests_one_after_the_other_are_two_samplings() -> None:
    rollout = Rollout()
    assert rollout.ask("a") == 0
    rollout.hand("a")
    assert rollout.ask("b") == 1


@pytest.mark.parametrize("restart", [False, True])
def test_what_the_relay_sends_again_is_the_same_request(restart: bool) -> None:
    rollout = Rollout()
    first, second = rollout.ask("a"), rollout.ask("b")
    if restart:
        rollout.restart()
    assert (rollout.ask("b"), rollout.ask("a")) == (second, first)
    assert len([note for note in rollout.log if isinstance(note, Asked)]) == 2


def test_another_body_under_the_same_name_is_refused() -> None:
    rollout = Rollout()
    rollout.ask("a")
    with pytest.raises(Conflict):
        rollout.ask("a", "other")


def test_who_left_before_the_answer_gets_it_when_it_asks_again() -> None:
    rollout = Rollout()
    rollout.ask("a")
    rollout.leave("a")
    assert rollout.ask("b") == 0
    rollout.hand("b")
    assert rollout.ask("c") == 1


def test_two_that_left_come_back_each_to_its_own() -> None:
    rollout = Rollout()
    assert [rollout.ask("a"), rollout.ask("b")] == [0, 1]
    rollout.lose_node()
    assert [rollout.ask("c", retry=True), rollout.ask("d", retry=True)] == [0, 1]


def test_a_retry_after_the_answer_was_handed_over_gets_it_again() -> None:
    rollout = Rollout()
    rollout.ask("a")
    rollout.hand("a")
    rollout.ask("b")
    rollout.hand("b")
    assert rollout.ask("c", retry=True) == 1
    rollout.hand("c")
    assert rollout.ask("d", "other", retry=True) == 2


def test_a_retry_whose_first_try_seems_to_wait_joins_it() -> None:
    rollout = Rollout()
    rollout.ask("a")
    assert rollout.ask("b", retry=True) == 0


def test_what_a_paused_sandbox_was_given_is_given_once_more() -> None:
    rollout = Rollout()
    rollout.ask("a")
    rollout.hand("a", held=True)
    assert rollout.ask("b") == 0
    rollout.hand("b")
    assert rollout.ask("c") == 1


def test_doubt_ends_when_something_new_is_asked() -> None:
    rollout = Rollout()
    rollout.ask("a")
    rollout.hand("a", held=True)
    assert rollout.ask("b", "other") == 1
    rollout.hand("b")
    rollout.restart()
    assert rollout.ask("c") == 2


def test_doubt_outlives_a_restart() -> None:
    rollout = Rollout()
    rollout.ask("a")
    rollout.hand("a", held=True)
    notes = rollout.ordinals.news(rollout.told)
    rollout.ordinals.apply(notes)
    rollout.log += notes
    rollout.restart()
    assert rollout.ask("b") == 0


def test_a_failed_answer_is_not_given_to_the_next_try() -> None:
    rollout = Rollout()
    rollout.ask("a")
    failed = [Failed(ordinal=0)]
    rollout.ordinals.apply(failed)
    rollout.hand("a")
    assert rollout.ask("b", retry=True) == 1
    assert rollout.ordinals.failed(0)
    assert not rollout.ordinals.failed(1)


def test_what_was_told_already_is_not_noted_again() -> None:
    rollout = Rollout()
    rollout.ask("a")
    rollout.hand("a")
    rollout.hand("never asked")
    rollout.ask("b")
    rollout.leave("b")
    rollout.ask("c")
    assert [note for note in rollout.log if isinstance(note, Handed)] == [Handed(relay="a")]


def test_ordinals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS_MAX", 2)
    rollout = Rollout()
    rollout.ask("a")
    rollout.ask("b")
    with pytest.raises(Overloaded):
        rollout.ask("c")
    assert rollout.ask("a") == 0


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "again", "retry", "leave", "hand", "held", "restart", "node"]),
        st.integers(0, 5),
        st.sampled_from("de"),
    ),
    max_size=40,
)


@given(_STEPS)
def test_any_order_of_events(steps: list[tuple[str, int, str]]) -> None:
    """Replaying the record gives the same state, and an ordinal has one digest for ever."""
    rollout = Rollout()
    asked: dict[str, tuple[str, int]] = {}
    for number, (what, place, digest) in enumerate(steps):
        names = list(asked)
        chosen = names[place % len(names)] if names else None
        if what in {"ask", "retry"}:
            found = rollout.ask(f"r{number}", digest, retry=what == "retry")
            asked[f"r{number}"] = digest, found
        elif what == "again" and chosen is not None:
            known, ordinal = asked[chosen]
            assert rollout.ask(chosen, known) == ordinal
        elif what == "leave" and chosen is not None:
            rollout.leave(chosen)
        elif what in {"hand", "held"} and chosen is not None and chosen in rollout.waiting:
            rollout.hand(chosen, held=what == "held")
        elif what == "restart":
            rollout.restart()
        elif what == "node":
            rollout.lose_node()
    by_ordinal: dict[int, set[str]] = {}
    for digest, ordinal in asked.values():
        by_ordinal.setdefault(ordinal, set()).add(digest)
    assert all(len(found) == 1 for found in by_ordinal.values())
    assert sorted(by_ordinal) == list(range(len(rollout.ordinals)))
    again = Ordinals(rollout.log)
    assert all(again.of(relay) == ordinal for relay, (_, ordinal) in asked.items())
    made = [note for note in rollout.log if isinstance(note, Asked | Again)]
    assert len(made) == len(asked)
