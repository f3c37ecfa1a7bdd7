"""What the trajectory of an agent's sandbox says of one model request. Pure; equal input, equal event.

It holds what is new: the messages since the model's last answer, and the answer, both as far as a reader
needs them. A conversation comes whole with each request, so that whole bodies would be kept as often as
it has turns; they stand once, in the job's record, under the `sha256` that is named here.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from skerry.errors import InvalidRequest
from skerry.integrity.conduct import TEXT_MAX
from skerry.spec.values import INTEGERS, check_value
from skerry.worker.memory import Given
from skerry.worker.model.book import Asked, Call

ACTION = "model.request"
MESSAGES_MAX = 8  # of the new ones, the last
ASKED_TEXT_MAX = 8_192  # characters of all messages of a request together
ANSWER_TEXT_MAX = 16_384  # of an answer, its calls of tools among them
CALLS_MAX = 32
NAME_MAX = 200
_USAGE = {
    "input_tokens": ("prompt_tokens", "input_tokens"),
    "output_tokens": ("completion_tokens", "output_tokens"),
}


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a trajectory."""

    request: dict[str, Any]
    result: dict[str, Any]
    started: float
    ended: float
    usage: dict[str, Any]


def told(attempt: int, asked: Asked, given: Given | None) -> Told:
    """Returns the event of a request that was answered, or of one that never was. Both are whole."""
    body = _object(asked.body)
    messages = _messages(asked.call, body)
    request = {
        "attempt": attempt,
        "ordinal": asked.ordinal,
        "call": str(asked.call),
        "model": _name(body.get("model")),
        "digest": asked.digest,
        "messages": len(messages),
        "new": _new(messages),
        **_whole(asked.body),
    }
    if given is None:
        result: dict[str, Any] = {"answered": False}
        return Told(request=request, result=result, started=asked.at, ended=asked.at, usage={})
    answer = _object(given.body)
    result = {"answered": True, "status": given.status, **_whole(given.body)}
    if given.status != 200:
        error = answer.get("error")
        message = error.get("message") if isinstance(error, dict) else None
        result["error"] = _cut(_text(message), ANSWER_TEXT_MAX)
    elif asked.call is Call.CHAT:
        result |= _of_chat(answer)
    else:
        result |= _of_response(answer)
    return Told(
        request=request,
        result=result,
        started=asked.at,
        ended=given.at,
        usage=_usage(answer.get("usage")),
    )


def words(call: Call, body: bytes) -> str:
    """Returns what an answer has its agent do, as rules of conduct look at it: at most TEXT_MAX.

    That is the texts in its calls of tools; without one what it says, for there are agents that run
    that. Of all choices: which of them an agent takes is not known.
    """
    answer = _object(body)
    if call is Call.CHAT:
        choices = [one for one in _list(answer.get("choices")) if isinstance(one, dict)]
        messages = [one.get("message") for one in choices[:CALLS_MAX]]
        items = [one for one in messages if isinstance(one, dict)]
        calls = [
            one.get("function")
            for item in items
            for one in _list(item.get("tool_calls"))
            if isinstance(one, dict)
        ]
    else:
        items = [one for one in _list(answer.get("output")) if isinstance(one, dict)]
        calls = [one for one in items if one.get("type") == "function_call"]
    asked = [one for one in calls if isinstance(one, dict)]
    found: list[str] = []
    for one in asked:
        found += [_name(one.get("name")), *_texts(_text(one.get("arguments")))]
        if sum(map(len, found)) > TEXT_MAX:
            break
    if not asked:
        found = [_content(item.get("content")) for item in items]
    return "\n".join(found)[:TEXT_MAX]


def _texts(arguments: str) -> list[str]:
    """Returns the texts in the arguments of a call, as the tool gets them; else all as it stands."""
    try:
        level = [msgspec.json.decode(arguments)]
        check_value(level, "arguments")
    except (msgspec.MsgspecError, RecursionError, InvalidRequest):
        return [arguments]
    found: list[str] = []
    while level:
        one = level.pop()
        if isinstance(one, str):
            found.append(_text(one))
        elif isinstance(one, dict):
            level.extend(reversed(one.values()))
        elif isinstance(one, list):
            level.extend(reversed(one))
    return found


def _whole(body: bytes) -> dict[str, Any]:
    """Returns how the job's record names a body."""
    return {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


def _object(body: bytes) -> dict[str, Any]:
    found = msgspec.json.decode(body)
    return found if isinstance(found, dict) else {}


def _messages(call: Call, body: dict[str, Any]) -> list[Any]:
    found = body.get("messages" if call is Call.CHAT else "input")
    if isinstance(found, str):
        return [{"role": "user", "content": found}]
    return found if isinstance(found, list) else []


def _new(messages: list[Any]) -> list[dict[str, Any]]:
    """Returns what was said since the model spoke last, oldest first."""
    found: list[dict[str, Any]] = []
    left = ASKED_TEXT_MAX
    for one in reversed(messages[-MESSAGES_MAX:]):
        if not isinstance(one, dict) or _is_models(one):
            break
        text = _content(one.get("content", one.get("output")))
        said = {"role": _name(one.get("role", one.get("type"))), **_cut(text, left)}
        left -= len(said["text"])
        found.append(said)
    return found[::-1]


def _is_models(message: dict[str, Any]) -> bool:
    return message.get("role") == "assistant" or message.get("type") in (
        "function_call",
        "reasoning",
    )


def _of_chat(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    choice = first if isinstance(first, dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    functions = [
        call.get("function") for call in _list(message.get("tool_calls")) if isinstance(call, dict)
    ]
    result = _said(_content(message.get("content")), functions)
    result["finish_reason"] = _name(choice.get("finish_reason"))
    if len(_list(choices)) > 1:
        result["choices"] = len(_list(choices))
    return result


def _of_response(answer: dict[str, Any]) -> dict[str, Any]:
    items = [one for one in _list(answer.get("output")) if isinstance(one, dict)]
    texts = [_content(one.get("content")) for one in items if one.get("type") == "message"]
    calls = [one for one in items if one.get("type") == "function_call"]
    return _said("\n".join(texts), calls) | {"finish_reason": _name(answer.get("status"))}


def _said(text: str, functions: list[Any]) -> dict[str, Any]:
    """Returns what the model said, and which tools it calls, in the room that there is for both."""
    result: dict[str, Any] = {"answer": _cut(text, ANSWER_TEXT_MAX)}
    left = ANSWER_TEXT_MAX - len(result["answer"]["text"])
    calls = []
    for one in functions[:CALLS_MAX]:
        if isinstance(one, dict):
            arguments = _cut(_text(one.get("arguments")), left)
            left -= len(arguments["text"])
            calls.append({"name": _name(one.get("name")), "arguments": arguments})
    if calls:
        result["tool_calls"] = calls
    if len(functions) > CALLS_MAX:
        result["tool_calls_total"] = len(functions)
    return result


def _cut(text: str, limit: int) -> dict[str, Any]:
    """Returns the beginning of a text, and how long it is if that is not all of it."""
    shown = text[: max(0, limit)]
    return {"text": shown} if len(shown) == len(text) else {"text": shown, "characters": len(text)}


def _content(value: Any) -> str:
    """Returns the text of a message's content: a text, or the text of its parts."""
    if not isinstance(value, list):
        return _text(value)
    texts = []
    for part in value[:CALLS_MAX]:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        texts.append(_text(text) if isinstance(text, str) else f"[{_name(kind)}]")
    return "\n".join(texts)


def _text(value: Any) -> str:
    """Returns a text that any encoder takes; "" for what is none."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else ""


def _name(value: Any) -> str:
    return _text(value)[:NAME_MAX]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _usage(value: Any) -> dict[str, Any]:
    """Returns the tokens that a trainer counted, by one name for both calls."""
    found: dict[str, Any] = {}
    for name, spellings in _USAGE.items():
        for spelling in spellings:
            count = value.get(spelling) if isinstance(value, dict) else None
            if type(count) is int and 0 <= count < INTEGERS.stop // 2:
                found[name] = count
    return found
