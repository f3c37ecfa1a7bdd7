"""A complete answer as a stream of server-sent events: equal answers make equal bytes. Pure.

Nothing is streamed as it is made: the trainer gives whole answers. So the pieces say nothing about time;
they are short enough for clients that bound the length of a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from skerry.worker.model.book import Call

PIECE_CHARS = 4096  # of a text in one event
PIECE_TOKENS = 64  # of a text with log-probabilities
_STEADY = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
_encode = msgspec.json.Encoder().encode


def render(call: Call, answer: dict[str, Any], *, usage: bool = False) -> bytes:
    """Returns all events of an answer, as one body; with `usage` a chat's stream ends with that."""
    if call is Call.RESPONSES:
        return b"".join(_named(number, event) for number, event in enumerate(_response(answer)))
    chunks = [b"data: " + _encode(chunk) + b"\n\n" for chunk in _chat(answer, usage=usage)]
    return b"".join((*chunks, b"data: [DONE]\n\n"))


def _named(number: int, event: dict[str, Any]) -> bytes:
    data = _encode({**event, "sequence_number": number})
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + data + b"\n\n"


# -- chat completions ---------------------------------------------------------------------------------


def _chat(answer: dict[str, Any], *, usage: bool) -> Iterator[dict[str, Any]]:
    head = {name: answer[name] for name in _STEADY if name in answer}
    head["object"] = "chat.completion.chunk"
    # What belongs to the whole answer and is no field of every chunk comes with the first.
    once = {
        name: value for name, value in answer.items() if name not in (*_STEADY, "choices", "usage")
    }
    for choice in answer["choices"]:
        for part in _parts(choice):
            yield {**head, **once, "choices": [part]}
            once = {}
    if usage and "usage" in answer:
        yield {**head, "choices": [], "usage": answer["usage"]}


def _parts(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks of one choice: what is no text first, then the text, the calls, and the end."""
    message, index = choice["message"], choice["index"]
    pieces = list(_text(message.get("content"), choice.get("logprobs")))
    kept = {k: v for k, v in message.items() if k not in ("content", "tool_calls")}

    def part(delta: dict[str, Any], logprobs: Any = None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    first = {"content": ""} if message.get("content") is not None else {}
    yield part({**kept, **first})
    for text, logprobs in pieces:
        yield part({"content": text}, logprobs)
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        opened = {**call, "index": number, "function": {**function, "arguments": ""}}
        yield part({"tool_calls": [opened]})
        for text in _cut(function["arguments"]):
            yield part({"tool_calls": [{"index": number, "function": {"arguments": text}}]})
    own = {k: v for k, v in choice.items() if k not in ("index", "message", "logprobs")}
    yield {**own, "index": index, "delta": {}, "logprobs": None}


def _text(content: str | None, logprobs: Any) -> Iterator[tuple[str, Any]]:
    """The text in pieces, each with the log-probabilities of its tokens; all of them are told."""
    tokens = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not tokens:
        if logprobs:
            yield "", logprobs
        for text in _cut(content or ""):
            yield text, None
        return
    if not _spell(tokens, content):
        yield content or "", logprobs
        return
    rest = {name: value for name, value in logprobs.items() if name != "content"}
    for at in range(0, len(tokens), PIECE_TOKENS):
        some = tokens[at : at + PIECE_TOKENS]
        yield "".join(token["token"] for token in some), {"content": some, **rest}
        rest = dict.fromkeys(rest)


def _spell(tokens: Any, content: str | None) -> bool:
    """Whether the tokens are the text, so that both can be cut at the same places."""
    if not isinstance(tokens, list):
        return False
    texts = [token.get("token") if isinstance(token, dict) else None for token in tokens]
    return all(isinstance(text, str) for text in texts) and "".join(map(str, texts)) == content


def _cut(text: str) -> Iterator[str]:
    for at in range(0, len(text), PIECE_CHARS):
        yield text[at : at + PIECE_CHARS]


# -- responses ----------------------------------------------------------------------------------------


def _response(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for number, item in enumerate(answer["output"]):
        yield from _item(number, item)
    ends = {"incomplete": "response.incomplete", "failed": "response.failed"}
    yield {"type": ends.get(answer["status"], "response.completed"), "response": answer}


def _item(number: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    empty: dict[str, Any] = {}
    if item["type"] == "message":
        empty = {"content": [], "status": "in_progress"}
    elif item["type"] == "function_call":
        empty = {"arguments": "", "status": "in_progress"}
    place = {"item_id": item["id"], "output_index": number}
    yield {
        "type": "response.output_item.added",
        "output_index": number,
        "item": {**item, **empty},
    }
    if item["type"] == "message":
        for index, part in enumerate(item["content"]):
            yield from _content({**place, "content_index": index}, part)
    elif item["type"] == "function_call":
        event = "response.function_call_arguments"
        for text in _cut(item["arguments"]):
            yield {"type": f"{event}.delta", **place, "delta": text}
        yield {
            "type": f"{event}.done",
            **place,
            "name": item["name"],
            "arguments": item["arguments"],
        }
    yield {"type": "response.output_item.done", "output_index": number, "item": item}


def _content(place: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = part.get("type") == "output_text"
    empty = {**part, "text": ""} if text else part
    yield {"type": "response.content_part.added", **place, "part": empty}
    if text:
        logprobs = part.get("logprobs") or []
        for piece in _cut(part["text"]):
            yield {
                "type": "response.output_text.delta",
                **place,
                "delta": piece,
                "logprobs": [],
            }
        yield {
            "type": "response.output_text.done",
            **place,
            "text": part["text"],
            "logprobs": logprobs,
        }
    yield {"type": "response.content_part.done", **place, "part": part}
