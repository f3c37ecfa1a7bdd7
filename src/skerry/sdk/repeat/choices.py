"""What a rollout does where its record and its harness part, or where the record has no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from skerry.errors import Diverged, InvalidRequest, OutcomeUnknown
from skerry.spec.trajectory import Event

OnDivergence = Literal["stop", "branch"]
OnUnknown = Literal["wait", "rerun", "fail"]
Choice: TypeAlias = OnUnknown | Callable[[Event], OnUnknown]

SHOWN: Final = 1500  # characters of one request in a message
_encode = msgspec.json.Encoder(order="deterministic").encode


def check_divergence(value: str) -> OnDivergence:
    """Returns the word if it is one; InvalidRequest."""
    if value not in get_args(OnDivergence):
        raise InvalidRequest(f"on_divergence is 'stop' or 'branch', not {value!r}")
    return value  # type: ignore[return-value]


def check_unknown(value: Any) -> Choice:
    """Returns the word, or what decides for each operation; InvalidRequest."""
    if not callable(value) and value not in get_args(OnUnknown):
        raise InvalidRequest(f"on_unknown is 'wait', 'rerun', 'fail' or a function, not {value!r}")
    return value  # type: ignore[no-any-return]


def chosen(choice: Choice, event: Event) -> OnUnknown:
    """Returns what is done about an operation; InvalidRequest if a function says something else."""
    word = choice(event) if callable(choice) else choice
    if word not in get_args(OnUnknown):
        raise InvalidRequest(f"on_unknown gave {word!r}, which is none of 'wait', 'rerun', 'fail'")
    return word


def diverged(
    sandbox: str,
    ordinal: int,
    recorded: tuple[str, dict[str, Any]],
    asked: tuple[str, dict[str, Any]],
) -> Diverged:
    """Returns the error that shows both operations."""
    return Diverged(
        f"operation {ordinal} of {sandbox} is another one than when it was recorded\n"
        f"  recorded: {_shown(*recorded)}\n"
        f"  asked:    {_shown(*asked)}",
        sandbox=sandbox,
        ordinal=ordinal,
        recorded={"action": recorded[0], "request": recorded[1]},
        asked={"action": asked[0], "request": asked[1]},
    )


def no_branch(error: Diverged, sandbox: str, commits: int) -> Diverged:
    """Returns that error with why nothing can be branched from, and what to do; field `no_branch`.

    It is for members of forks: what they begin with was on no disk but that of the sandbox that they
    were forked from, and only a commit keeps such a thing. `commits` were made, and are gone.
    """
    why = f"{sandbox} was made by a fork, so it cannot be made anew as it was created, and "
    if commits:
        why += f"no layer of its commits before this operation is in the store ({commits} made)"
    else:
        why += "no commit of it before this operation is on record"
    return Diverged(
        f"{error.message}\n"
        f"  no branch: {why}. Ask for what is recorded, or run the rollout under another key; to be "
        "able to branch the next time, commit each member of a fork first",
        **error.fields,
        no_branch=why,
    )


def unknown(event: Event, ordinal: int, why: str) -> OutcomeUnknown:
    """Returns the error of an operation of which nobody can say whether it ran."""
    return OutcomeUnknown(
        f"operation {ordinal} of {event.sandbox}, {_shown(event.action, event.request)}: {why}. "
        "Run the rollout again with on_unknown='rerun' if it may run twice, or with a function that "
        "decides for each operation; 'wait' waits for one that still runs",
        sandbox=event.sandbox,
        ordinal=ordinal,
        action=event.action,
        choices=list(get_args(OnUnknown)),
    )


def _shown(action: str, request: dict[str, Any]) -> str:
    text = _encode(request).decode()
    return f"{action} {text if len(text) <= SHOWN else text[:SHOWN] + '...'}"
