"""How an event looks on a terminal. What a guest or a caller wrote can command nothing there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.words import size
from skerry.spec.trajectory import is_content

if TYPE_CHECKING:
    from skerry.spec.trajectory import Event

MODEL_REQUEST = "model.request"
VERDICT = "verdict"
HARNESS = "harness."
STDERR = "stderr"
EMPTY: tuple[Any, ...] = (None, "", [], {})
TEXT_SHOWN = 400
LINE_SHOWN = 200
COLOURS = {
    "done": "green",
    "error": "red",
    "unknown": "magenta",
    "running": "cyan",
    "void": "white",
}


def inert(text: str) -> str:
    """Returns text with everything escaped that is no printable character, colours too."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def inert_lines(text: str, indent: str) -> str:
    """Returns text of several lines as one block: no line of it can pass for one of ours."""
    lines = text.rstrip("\n").split("\n")
    return ("\n" + indent).join(inert(line.replace("\t", "    ")) for line in lines)


def brief(event: Event, limit: int = LINE_SHOWN) -> str:
    """Returns what was asked for, in one line."""
    request = event.request
    if event.action in ("run", "session.run"):
        shell, argv = request.get("shell"), request.get("argv")
        words = argv if isinstance(argv, list) else []
        text = str(shell) if shell is not None else shlex.join(map(str, words))
        where = f" [{request.get('session')}]" if event.action == "session.run" else ""
        return cut(f"{inert(text)}{inert(where)}", limit)
    if event.action == MODEL_REQUEST:
        told = [request.get(name) for name in ("ordinal", "call", "model", "messages", "bytes")]
        number, call, model, messages, length = (str(value) for value in told)
        text = f"{number}: {call} of {model!r}, {messages} messages, {length} bytes"
        return cut(inert(text), limit)
    parts = [f"{name}={_word(value)}" for name, value in request.items()]
    return cut(inert(" ".join(parts)), limit)


def came(event: Event) -> str:
    """Returns what came of it, in a few words."""
    if event.error is not None:
        fault, message = event.error.get("fault", ""), event.error.get("message", "")
        return cut(inert(f"{event.error.get('code', '')} ({fault}): {message}"), LINE_SHOWN)
    result = event.result or {}
    words = []
    if event.action == MODEL_REQUEST:
        words += _answered(event, result)
    if result.get("exit_code") is not None:
        words.append(f"exit {result['exit_code']}")
    if result.get("signal") is not None:
        words.append(f"signal {result['signal']}")
    if result.get("start_error"):
        words.append(str(result["start_error"]))
    words += [name for name in ("timed_out", "oom_killed", "truncated") if result.get(name)]
    if event.action == VERDICT or event.action.startswith(HARNESS):
        told = [f"{name}={_word(value)}" for name, value in result.items() if value not in EMPTY]
        words += [cut(" ".join(told), LINE_SHOWN)] if told else []
    if not words:
        words.append(str(event.outcome))
    return inert(", ".join(words))


def lines_of(event: Event, began: float, *, full: bool = False) -> Iterator[str]:
    """Yields an event as lines: what was done and what came of it, then its output."""
    colour = COLOURS.get(str(event.outcome), "white")
    head = click.style(f"+{max(0.0, event.started - began):8.2f} s", bold=True)
    time = f", {max(0.0, event.ended - event.started):.2f} s" if event.ended else ""
    state = click.style(came(event), fg=colour)
    yield f"{head} {event.ordinal:>5}  {inert(event.action):<13} {brief(event)}"
    yield f"{'':>19}-> {state}{time}"
    for name, value in {**event.request, **(event.result or {})}.items():
        if is_content(value):
            text = _content(name, value, full=full)
            if text:
                yield f"{'':>19}{inert(name)}: " + inert_lines(text, " " * 21)
    if event.action == MODEL_REQUEST:
        for name, text in _said(event):
            shown = text if full else cut(text, TEXT_SHOWN)
            yield f"{'':>19}{inert(name)}: " + inert_lines(shown, " " * 21)


def _answered(event: Event, result: dict[str, Any]) -> list[str]:
    """Returns how a request of a model went."""
    if not result.get("answered"):
        return ["never answered"]
    words = [f"status {result.get('status')}", str(result.get("finish_reason") or "")]
    words += [f"{count} {name.replace('_', ' ')}" for name, count in event.usage.items()]
    return [word for word in words if word]


def _said(event: Event) -> Iterator[tuple[str, str]]:
    """Yields who said what: what was new in a request, and what the model answered."""
    for one in _mappings(event.request.get("new")):
        yield cut(str(one.get("role")), LINE_SHOWN), str(one.get("text", ""))
    result = event.result or {}
    for name in ("answer", "error"):
        for one in _mappings([result.get(name)]):
            if one.get("text"):
                yield name, str(one["text"])
    for call in _mappings(result.get("tool_calls")):
        for one in _mappings([call.get("arguments")]):
            yield "calls", f"{call.get('name')} {one.get('text', '')}"


def _mappings(value: Any) -> list[dict[str, Any]]:
    """Returns what is an object in a list that somebody posted."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _content(name: str, value: dict[str, Any], *, full: bool) -> str:
    if "text" in value:
        text = str(value["text"])
        return text if full else part(name, text, size(value["bytes"]))
    if "base64" in value:
        return f"({size(value['bytes'])} that are no text)"
    if "blob" in value:
        return f"({size(value['bytes'])}, content {value['blob']})"
    return f"({size(value['bytes'])}, not kept)"


def _word(value: Any) -> str:
    if is_content(value):
        return f"({value['bytes']} bytes)"
    if isinstance(value, dict | list):
        return cut(str(value), 60)
    return str(value)


def part(name: str, text: str, length: str) -> str:
    """Returns what is shown of a long text: its beginning, but of stderr its end, which says why."""
    if len(text) <= TEXT_SHOWN:
        return text
    if name == STDERR:
        return f"({length}) ... " + text[-TEXT_SHOWN:]
    return text[:TEXT_SHOWN] + f" ... ({length})"


def cut(text: str, limit: int) -> str:
    """Returns text of at most so many characters."""
    return text if len(text) <= limit else text[: limit - 4] + " ..."
