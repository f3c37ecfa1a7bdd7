"""What may happen to a sandbox, as one pure table: (state, event) -> (state, commands).

Whoever drives it feeds events, keeps the state that comes back, and carries out the commands in
order; what a command brings about is fed as an event again. Nothing here waits, reads a clock or
touches a sandbox.

| state | meaning | where its instance is | ends by |
|---|---|---|---|
| creating | the backend makes the instance | being made | created, create_failed |
| running | commands may run | live | pause, stop, delete, died |
| pausing | its processes are being stopped | live | paused, pause_failed, stop, delete, died |
| paused | its processes stand still | live, frozen | resume, stop, delete, died |
| resuming | its processes are being set going | live | resumed, resume_failed, stop, delete, died |
| stopping | the instance is being destroyed | ending | destroyed |
| stopped | kept for its results only | none | delete |
| failed | died or could not be driven; keeps its reason | none, or ending | delete |

`None` in place of a state means forgotten: nothing is left, not even the name. `DEFER` means that
the event is fed again, once, after the next change of state: so a delete during creation and a
resume during a pause are never lost.

The picture, as `draw()` gives it:

    creating -> failed: create_failed
    creating -> running: created
    failed -> stopping: delete
    paused -> failed: died
    paused -> resuming: resume
    paused -> stopping: delete, stop
    pausing -> failed: died
    pausing -> paused: paused
    pausing -> running: pause_failed
    pausing -> stopping: delete, stop
    resuming -> failed: died, resume_failed
    resuming -> running: resumed
    resuming -> stopping: delete, stop
    running -> failed: died
    running -> pausing: pause
    running -> stopping: delete, stop
    stopped -> gone: delete
    stopping -> stopped: destroyed
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from skerry.errors import Bug, Conflict
from skerry.spec.sandbox import State


class Event(StrEnum):
    """What happened, or was asked for."""

    CREATED = "created"  # the backend made the instance and its agent answered
    CREATE_FAILED = "create_failed"  # it did not; the backend left nothing
    PAUSE = "pause"  # asked, or the idle timeout passed
    PAUSED = "paused"
    PAUSE_FAILED = "pause_failed"
    RESUME = "resume"  # asked, or a request needs it to run
    RESUMED = "resumed"
    RESUME_FAILED = "resume_failed"
    STOP = "stop"  # idle timeout or ttl: the name and the results stay
    DELETE = "delete"  # asked, or its owner is gone: nothing stays
    DIED = "died"  # its first process ended by itself, or it cannot be driven any more
    DESTROYED = "destroyed"  # nothing of the instance is left


class Command(StrEnum):
    """What the driver does next."""

    PAUSE_INSTANCE = "pause_instance"  # answered by PAUSED or PAUSE_FAILED
    RESUME_INSTANCE = "resume_instance"  # answered by RESUMED or RESUME_FAILED
    DESTROY_INSTANCE = "destroy_instance"  # answered by DESTROYED
    SETTLE_OPERATIONS = "settle_operations"  # operations under way get their last answer
    FORGET = "forget"  # names, results and journal are let go
    DEFER = "defer"  # feed this event again after the next change of state


class Row(NamedTuple):
    """One row: in `state`, `event` leads to `next` with `commands`, because of `why`."""

    state: State
    event: Event
    next: State | None
    commands: tuple[Command, ...]
    why: str


_C, _E, _S = Command, Event, State
_END = (_C.SETTLE_OPERATIONS, _C.DESTROY_INSTANCE)
_DELETE = (_C.SETTLE_OPERATIONS, _C.DESTROY_INSTANCE, _C.DEFER)

ROWS: Final[tuple[Row, ...]] = (
    Row(_S.CREATING, _E.CREATED, _S.RUNNING, (), "the agent answered"),
    Row(_S.CREATING, _E.CREATE_FAILED, _S.FAILED, (), "the backend left nothing behind"),
    Row(
        _S.CREATING,
        _E.DELETE,
        _S.CREATING,
        (_C.DEFER,),
        "an instance in the making has no handle yet",
    ),
    Row(_S.CREATING, _E.STOP, _S.CREATING, (_C.DEFER,), "as for delete"),
    Row(_S.CREATING, _E.PAUSE, _S.CREATING, (_C.DEFER,), "as for delete"),
    Row(_S.CREATING, _E.RESUME, _S.CREATING, (), "it will run anyway"),
    Row(_S.CREATING, _E.DIED, _S.CREATING, (), "creation reports its own failure"),
    Row(_S.RUNNING, _E.PAUSE, _S.PAUSING, (_C.PAUSE_INSTANCE,), ""),
    Row(_S.RUNNING, _E.RESUME, _S.RUNNING, (), "it runs"),
    Row(_S.RUNNING, _E.STOP, _S.STOPPING, _END, "idle, or its time is up"),
    Row(_S.RUNNING, _E.DELETE, _S.STOPPING, _DELETE, "deleted once it is stopped"),
    Row(_S.RUNNING, _E.DIED, _S.FAILED, _END, "its resources are freed at once; the reason stays"),
    Row(_S.PAUSING, _E.PAUSED, _S.PAUSED, (), ""),
    Row(_S.PAUSING, _E.PAUSE_FAILED, _S.RUNNING, (), "it goes on as before"),
    Row(_S.PAUSING, _E.PAUSE, _S.PAUSING, (), "asked twice"),
    Row(_S.PAUSING, _E.RESUME, _S.PAUSING, (_C.DEFER,), "a resume right after a pause is not lost"),
    Row(_S.PAUSING, _E.STOP, _S.STOPPING, _END, "destroy may overtake a pause"),
    Row(_S.PAUSING, _E.DELETE, _S.STOPPING, _DELETE, "destroy may overtake a pause"),
    Row(_S.PAUSING, _E.DIED, _S.FAILED, _END, ""),
    Row(_S.PAUSED, _E.PAUSE, _S.PAUSED, (), "it stands still"),
    Row(_S.PAUSED, _E.RESUME, _S.RESUMING, (_C.RESUME_INSTANCE,), "any request resumes"),
    Row(_S.PAUSED, _E.STOP, _S.STOPPING, _END, "the ttl always stops"),
    Row(_S.PAUSED, _E.DELETE, _S.STOPPING, _DELETE, "a frozen instance can be destroyed"),
    Row(_S.PAUSED, _E.DIED, _S.FAILED, _END, "killed while it stood still"),
    Row(_S.RESUMING, _E.RESUMED, _S.RUNNING, (), ""),
    Row(_S.RESUMING, _E.RESUME_FAILED, _S.FAILED, _END, "it can be neither used nor trusted"),
    Row(_S.RESUMING, _E.PAUSE, _S.RESUMING, (_C.DEFER,), "pauses again once it runs"),
    Row(_S.RESUMING, _E.RESUME, _S.RESUMING, (), "asked twice"),
    Row(_S.RESUMING, _E.STOP, _S.STOPPING, _END, "destroy may overtake a resume"),
    Row(_S.RESUMING, _E.DELETE, _S.STOPPING, _DELETE, "destroy may overtake a resume"),
    Row(_S.RESUMING, _E.DIED, _S.FAILED, _END, ""),
    Row(_S.STOPPING, _E.DESTROYED, _S.STOPPED, (), "nothing of the instance is left"),
    Row(_S.STOPPING, _E.DELETE, _S.STOPPING, (_C.DEFER,), "deleted once it is stopped"),
    Row(_S.STOPPING, _E.STOP, _S.STOPPING, (), "asked twice"),
    Row(_S.STOPPING, _E.DIED, _S.STOPPING, (), "that is what stopping does"),
    Row(_S.STOPPING, _E.PAUSED, _S.STOPPING, (), "a pause that was overtaken"),
    Row(_S.STOPPING, _E.PAUSE_FAILED, _S.STOPPING, (), "a pause that was overtaken"),
    Row(_S.STOPPING, _E.RESUMED, _S.STOPPING, (), "a resume that was overtaken"),
    Row(_S.STOPPING, _E.RESUME_FAILED, _S.STOPPING, (), "a resume that was overtaken"),
    Row(_S.STOPPED, _E.DELETE, None, (_C.FORGET,), "the name is free again"),
    Row(_S.STOPPED, _E.STOP, _S.STOPPED, (), "asked twice"),
    Row(_S.STOPPED, _E.DIED, _S.STOPPED, (), "reported late"),
    Row(_S.STOPPED, _E.DESTROYED, _S.STOPPED, (), "destroyed twice: destroy is idempotent"),
    Row(_S.STOPPED, _E.PAUSED, _S.STOPPED, (), "a pause that was overtaken"),
    Row(_S.STOPPED, _E.PAUSE_FAILED, _S.STOPPED, (), "a pause that was overtaken"),
    Row(_S.STOPPED, _E.RESUMED, _S.STOPPED, (), "a resume that was overtaken"),
    Row(_S.STOPPED, _E.RESUME_FAILED, _S.STOPPED, (), "a resume that was overtaken"),
    Row(_S.FAILED, _E.DESTROYED, _S.FAILED, (), "what was left is freed"),
    Row(_S.FAILED, _E.DELETE, _S.STOPPING, _DELETE, "destroys again: a first try may have failed"),
    Row(_S.FAILED, _E.STOP, _S.FAILED, (), "it is stopped already; the reason stays"),
    Row(_S.FAILED, _E.DIED, _S.FAILED, (), "reported twice"),
    Row(_S.FAILED, _E.PAUSED, _S.FAILED, (), "a pause that was overtaken"),
    Row(_S.FAILED, _E.PAUSE_FAILED, _S.FAILED, (), "a pause that was overtaken"),
    Row(_S.FAILED, _E.RESUMED, _S.FAILED, (), "a resume that was overtaken"),
    Row(_S.FAILED, _E.RESUME_FAILED, _S.FAILED, (), "a resume that was overtaken"),
)

TABLE: Final[dict[tuple[State, Event], Row]] = {(row.state, row.event): row for row in ROWS}

# Events that a user's request becomes: without a row they are that user's mistake, not ours.
_REQUESTS: Final = frozenset({Event.PAUSE, Event.RESUME, Event.STOP, Event.DELETE})


def step(state: State, event: Event) -> Row:
    """Returns the row for an event.

    Raises Conflict if a request does not fit the state, and Bug if a report does not.
    """
    row = TABLE.get((state, event))
    if row is not None:
        return row
    if event in _REQUESTS:
        raise Conflict(f"the sandbox is {state}: it cannot {event}", state=str(state))
    raise Bug(f"a sandbox that is {state} reported {event}")


def accepts_requests(state: State) -> bool:
    """Returns whether commands and files may be asked for: at once, or after a resume."""
    return state in {State.RUNNING, State.PAUSING, State.PAUSED, State.RESUMING}


def draw() -> str:
    """Returns every change of state as lines `from -> to: events`, sorted."""
    edges: dict[tuple[str, str], list[str]] = {}
    for row in ROWS:
        if row.next is not row.state:
            edge = (str(row.state), "gone" if row.next is None else str(row.next))
            edges.setdefault(edge, []).append(str(row.event))
    return "\n".join(f"{a} -> {b}: {', '.join(sorted(e))}" for (a, b), e in sorted(edges.items()))


def check_invariants() -> None:
    """Raises Bug unless the table keeps its promises.

    One row per state and event; every state takes a delete; an instance that may live is destroyed
    on the way out, and its operations are settled before; only a delete forgets; a deferred event
    leaves the state or waits for one that will.
    """
    if len(TABLE) != len(ROWS):
        raise Bug("two rows for one state and event")
    live = {State.RUNNING, State.PAUSING, State.PAUSED, State.RESUMING}
    for state in State:
        if (state, Event.DELETE) not in TABLE:
            raise Bug(f"a sandbox that is {state} cannot be deleted")
    for row in ROWS:
        leaves = row.state in live and row.next not in live
        if leaves and Command.DESTROY_INSTANCE not in row.commands:
            raise Bug(f"{row.state} + {row.event} would leave an instance behind")
        if Command.DESTROY_INSTANCE in row.commands and row.commands[:2] != _END:
            raise Bug(f"{row.state} + {row.event} destroys before operations are settled")
        if (row.next is None) != (Command.FORGET in row.commands):
            raise Bug(f"{row.state} + {row.event} must forget exactly when it ends")
        if row.next is None and row.event is not Event.DELETE:
            raise Bug(f"{row.state} + {row.event} forgets without being asked")
        if Command.DEFER in row.commands and row.next in {
            State.STOPPED,
            State.FAILED,
            State.PAUSED,
        }:
            raise Bug(f"{row.state} + {row.event} is deferred where nothing will change")
