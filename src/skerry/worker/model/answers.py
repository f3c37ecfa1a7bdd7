"""From what a trainer gives to a complete answer, as OpenAI's clients expect it. Pure.

A trainer may give the whole object, and then every field of it reaches the scaffold: token ids,
log-probabilities, usage, fields that nobody knows. What is missing is filled in. Or it gives a message
only, or a text; or an error. Equal input makes equal bytes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec.values import check_value
from skerry.worker.model.book import Answer, Asked, Call
from skerry.worker.model.canonical import parse

ANSWER_BYTES_MAX = 64 << 20
TRANSIENT = frozenset({408, 409, 429, *range(500, 600)})  # after these a client tries again
_MESSAGE = ("content", "tool_calls", "refusal", "reasoning_content", "reasoning", "role")
_CHOICE = ("finish_reason", "logprobs", "token_ids", "stop_reason")


def complete(asked: Asked, given: Any) -> Answer:
    """Returns the complete answer to a request; raises InvalidRequest naming what is wrong.

    `given` is a text; an object with `content` or `tool_calls`, a message, perhaps with
    `finish_reason`, `logprobs`, `token_ids`, `stop_reason`, `usage` and `prompt_token_ids`; the object
    that the call answers (with `choices`, or `output`); or `{"error": {"message": ...}, "status": 429}`.
    """
    if isinstance(given, str):
        given = {"content": given}
    if not isinstance(given, dict):
        raise InvalidRequest("an answer is a text or an object")
    if given.get("error") and not given.keys() & {"choices", "output"}:
        return _error(given)
    body = parse(asked.call, asked.body)
    whole = _chat(asked, body, given) if asked.call is Call.CHAT else _response(asked, body, given)
    return Answer(body=_bounded(whole))


def error_body(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """Returns an error in OpenAI's shape."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _error(given: dict[str, Any]) -> Answer:
    status, error = given.get("status", 500), given["error"]
    if not isinstance(status, int) or not 400 <= status <= 599:
        raise InvalidRequest("status: of an error it is between 400 and 599")
    if isinstance(error, str):
        error = {"message": error}
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        raise InvalidRequest("error: a text, or an object with a message")
    whole = error_body(status, error["message"])
    whole["error"] |= error
    return Answer(status=status, body=_bounded(whole))


def _chat(asked: Asked, body: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    if "choices" not in given:
        given = _of_message(given)
    choices = given["choices"]
    if not isinstance(choices, list) or not choices:
        raise InvalidRequest("choices: no list with at least one")
    return {
        "id": f"chatcmpl-{ident(asked)}",
        "object": "chat.completion",
        "created": int(asked.at),
        "model": body.get("model", ""),
        **given,
        "choices": [_choice(asked, number, choice) for number, choice in enumerate(choices)],
    }


def _of_message(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the object of which only the message, and what belongs to it, was given."""
    if given.get("content") is None and not given.get("tool_calls"):
        raise InvalidRequest("an answer has choices, or else content or tool_calls")
    choice: dict[str, Any] = {name: given[name] for name in _CHOICE if name in given}
    choice["message"] = {name: given[name] for name in _MESSAGE if name in given}
    rest = {name: value for name, value in given.items() if name not in (*_MESSAGE, *_CHOICE)}
    return {**rest, "choices": [choice]}


def _choice(asked: Asked, number: int, choice: Any) -> dict[str, Any]:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise InvalidRequest(f"choices[{number}]: no object with a message")
    content, calls = message.get("content"), message.get("tool_calls")
    if content is not None and not isinstance(content, str):
        raise InvalidRequest(f"choices[{number}]: content is no text")
    made = {"role": "assistant", "content": None, **message}
    if calls is not None:
        if not isinstance(calls, list):
            raise InvalidRequest(f"choices[{number}]: tool_calls is no list")
        made["tool_calls"] = [
            _tool_call(f"call_{ident(asked, number, place)}", call)
            for place, call in enumerate(calls)
        ]
    reason = "tool_calls" if calls else "stop"
    return {"index": number, "finish_reason": reason, "logprobs": None, **choice, "message": made}


def _tool_call(name: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest("tool_calls: each has a function with a name")
    whole = {**function, "arguments": _arguments(function.get("arguments", "{}"))}
    return {"id": name, "type": "function", **call, "function": whole}


def _arguments(value: Any) -> str:
    """Returns the arguments of a call as the text that the protocol wants."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _bounded(value).decode()
    raise InvalidRequest("arguments: a text, or an object")


def _response(asked: Asked, body: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    if "output" not in given:
        given = _of_items(given)
    items = given["output"]
    if not isinstance(items, list):
        raise InvalidRequest("output: no list")
    if not isinstance(given.get("status", ""), str):
        raise InvalidRequest("status: no text")
    echoed: dict[str, Any] = {
        name: body[name]
        for name in ("instructions", "metadata", "temperature", "top_p", "tools", "tool_choice")
        if name in body
    }
    return {
        "id": f"resp_{ident(asked)}",
        "object": "response",
        "created_at": int(asked.at),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": body.get("model", ""),
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": "auto",
        "tools": [],
        "metadata": {},
        **echoed,
        **given,
        "output": [_item(asked, number, item) for number, item in enumerate(items)],
    }


def _of_items(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the object of which a text or calls of tools were given."""
    content, calls = given.get("content"), given.get("tool_calls") or []
    if content is None and not calls:
        raise InvalidRequest("an answer has output, or else content or tool_calls")
    if not isinstance(calls, list):
        raise InvalidRequest("tool_calls: no list")
    items: list[dict[str, Any]] = []
    if content is not None:
        items.append({"type": "message", "content": content})
    for call in calls:
        function = _tool_call("", call)["function"]
        items.append({"type": "function_call", **function})
    taken = ("content", "tool_calls", "role", "finish_reason")
    rest = {name: value for name, value in given.items() if name not in taken}
    return {**rest, "output": items}


def _item(asked: Asked, number: int, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        raise InvalidRequest(f"output[{number}]: no object with a type")
    name = ident(asked, number)
    if item["type"] == "function_call":
        if not isinstance(item.get("name"), str):
            raise InvalidRequest(f"output[{number}]: a call without a name")
        made = {"id": f"fc_{name}", "call_id": f"call_{name}", "status": "completed", **item}
        return made | {"arguments": _arguments(item.get("arguments", "{}"))}
    if item["type"] != "message":
        return {"id": f"item_{name}", **item}
    content = item.get("content", [])
    if isinstance(content, str):
        content = [{"type": "output_text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise InvalidRequest(f"output[{number}]: content is neither a text nor a list of parts")
    parts = [
        {"annotations": [], "text": "", **part} if part.get("type") == "output_text" else part
        for part in content
    ]
    if not all(isinstance(part.get("text", ""), str) for part in parts):
        raise InvalidRequest(f"output[{number}]: text is no text")
    whole = {"id": f"msg_{name}", "status": "completed", "role": "assistant", **item}
    return whole | {"content": parts}


def ident(asked: Asked, *places: int) -> str:
    """Returns what makes names in this answer unique, and the same each time."""
    text = f"{asked.relay} {asked.ordinal} {asked.digest} {places}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _bounded(value: dict[str, Any]) -> bytes:
    check_value(value, "the answer")
    try:
        data = _encode(value)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the answer is no JSON: {str(error)[:200]}") from None
    if len(data) > ANSWER_BYTES_MAX:
        raise InvalidRequest(f"the answer has {len(data)} bytes, at most {ANSWER_BYTES_MAX}")
    return data


def _no_json(value: Any) -> Any:
    raise TypeError(f"a {type(value).__name__}")


_encode = msgspec.json.Encoder(enc_hook=_no_json).encode
