"""The table of transitions: complete, drawn as it is, and every way leads to deletion."""

from __future__ import annotations

import pytest

from skerry.errors import Bug, Conflict
from skerry.lifecycle import table
from skerry.lifecycle.table import Command, Event
from skerry.spec.sandbox import State


def test_table_keeps_its_invariants() -> None:
    table.check_invariants()


def test_picture_in_the_module_is_the_table_drawn() -> None:
    assert table.__doc__ is not None
    lines = [
        line.strip() for line in table.__doc__.splitlines() if " -> " in line and line[:4] == "    "
    ]
    assert "\n".join(lines) == table.draw()


def test_every_state_is_reachable_from_creating() -> None:
    seen = {State.CREATING}
    while True:
        more = {row.next for row in table.ROWS if row.state in seen and row.next} - seen
        if not more:
            break
        seen |= more
    assert seen == set(State)


@pytest.mark.parametrize("state", list(State))
def test_deleting_in_any_state_ends_with_nothing(state: State) -> None:
    replies = {
        State.CREATING: Event.CREATED,
        State.STOPPING: Event.DESTROYED,
    }
    current: State | None = state
    pending = [Event.DELETE]
    for _ in range(10):
        if current is None:
            break
        event = pending.pop(0) if pending else replies[current]
        row = table.step(current, event)
        if Command.DEFER in row.commands:
            changed = table.step(row.next or current, replies[row.next or current])
            pending.append(event)
            current = changed.next
            continue
        current = row.next
    assert current is None


@pytest.mark.parametrize("state", list(State))
def test_death_is_survived_in_every_state(state: State) -> None:
    assert table.step(state, Event.DIED).next is not None


@pytest.mark.parametrize(
    "late", [Event.PAUSED, Event.PAUSE_FAILED, Event.RESUMED, Event.RESUME_FAILED]
)
@pytest.mark.parametrize("state", [State.STOPPING, State.STOPPED, State.FAILED])
def test_report_that_was_overtaken_changes_nothing(state: State, late: Event) -> None:
    row = table.step(state, late)
    assert row.next is state
    assert row.commands == ()


def test_resume_right_after_a_pause_is_kept_for_later() -> None:
    row = table.step(State.PAUSING, Event.RESUME)
    assert row.commands == (Command.DEFER,)


def test_request_that_does_not_fit_is_a_conflict_and_a_report_a_bug() -> None:
    with pytest.raises(Conflict, match="stopped"):
        table.step(State.STOPPED, Event.PAUSE)
    with pytest.raises(Bug):
        table.step(State.RUNNING, Event.RESUMED)


def test_stopped_and_failed_take_no_commands() -> None:
    assert {state for state in State if table.accepts_requests(state)} == {
        State.RUNNING,
        State.PAUSING,
        State.PAUSED,
        State.RESUMING,
    }
