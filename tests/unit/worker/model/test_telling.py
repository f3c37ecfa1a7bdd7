"""What a trajectory says of a model request: what is new, bounded, with what names the whole."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from skerry.integrity.conduct import TEXT_MAX
from skerry.spec.values import check_value
from skerry.worker.memory import Given
from skerry.worker.model.answers import complete
from skerry.worker.model.book import Asked, Call
from skerry.worker.model.canonical import digest, parse
from skerry.worker.model.telling import (
    ANSWER_TEXT_MAX,
    ASKED_TEXT_MAX,
    CALLS_MAX,
    MESSAGES_MAX,
    told,
    words,
)


def asked(body: dict[str, Any], call: Call = Call.CHAT) -> Asked:
    raw = json.dumps(body).encode()
    name = digest(call, parse(call, raw))
    return Asked(ordinal=3, call=call, digest=name, relay="0" * 32, body=raw, at=10.0)


def given(request: Asked, value: Any) -> Given:
    answer = complete(request, value)
    return Given(
        ordinal=3, status=answer.status, digest="d", at=12.5, active_s=0.0, body=answer.body
    )


def chat(*messages: Any) -> Asked:
    return asked({"model": "m", "messages": list(messages)})


def test_the_new_messages_and_the_answer_are_told_with_what_names_the_whole() -> None:
    call = {"function": {"name": "bash", "arguments": {"command": "ls"}}}
    request = chat(
        {"role": "user", "content": "the old question"},
        {"role": "assistant", "content": "an old answer"},
        {"role": "tool", "content": "made"},
        {"role": "user", "content": [{"type": "text", "text": "and"}, {"type": "image_url"}]},
    )
    usage = {"prompt_tokens": 20, "completion_tokens": 4}
    answer = given(request, {"content": "I look", "tool_calls": [call], "usage": usage})
    event = told(1, request, answer)
    assert event.request["new"] == [
        {"role": "tool", "text": "made"},
        {"role": "user", "text": "and\n[image_url]"},
    ]
    assert (event.request["ordinal"], event.request["attempt"], event.request["messages"]) == (
        3,
        1,
        4,
    )
    assert event.request["digest"] == request.digest
    assert event.request["sha256"] == hashlib.sha256(request.body).hexdigest()
    assert event.result["sha256"] == hashlib.sha256(answer.body).hexdigest()
    assert event.result["answer"] == {"text": "I look"}
    assert event.result["tool_calls"] == [
        {"name": "bash", "arguments": {"text": '{"command":"ls"}'}}
    ]
    assert (event.result["status"], event.result["finish_reason"]) == (200, "tool_calls")
    assert event.usage == {"input_tokens": 20, "output_tokens": 4}
    assert (event.started, event.ended) == (10.0, 12.5)
    assert told(1, request, answer) == event


def test_the_other_call_is_told_in_the_same_words() -> None:
    request = asked(
        {
            "input": [
                {"role": "user", "content": "q"},
                {"type": "function_call", "name": "bash", "arguments": "{}", "call_id": "c"},
                {"type": "function_call_output", "call_id": "c", "output": "made"},
            ]
        },
        Call.RESPONSES,
    )
    calls = [{"function": {"name": "bash", "arguments": "{}"}}]
    value = {"content": "t", "tool_calls": calls, "usage": {"input_tokens": 1, "output_tokens": 2}}
    event = told(0, request, given(request, value))
    assert event.request["new"] == [{"role": "function_call_output", "text": "made"}]
    assert event.result["answer"] == {"text": "t"}
    assert event.result["tool_calls"] == [{"name": "bash", "arguments": {"text": "{}"}}]
    assert event.usage == {"input_tokens": 1, "output_tokens": 2}
    text = asked({"input": "hello"}, Call.RESPONSES)
    assert told(0, text, None).request["new"] == [{"role": "user", "text": "hello"}]


def test_errors_and_requests_without_an_answer_say_so() -> None:
    request = chat({"role": "user", "content": "q"})
    event = told(0, request, given(request, {"error": {"message": "slow down"}, "status": 429}))
    assert (event.result["status"], event.result["error"]) == (429, {"text": "slow down"})
    assert told(0, request, None).result == {"answered": False}


def test_it_is_bounded_whatever_is_asked_and_answered() -> None:
    long = "\x00" + "é" * 20_000
    many = [{"role": "user", "content": long} for _ in range(100)]
    request = asked({"model": long, "messages": many} | {"x": [[]] * 100_000})
    calls = [
        {"function": {"name": "n" * 5000, "arguments": "x" * 9000}} for _ in range(3 * CALLS_MAX)
    ]
    answer = given(request, {"content": "t" * 9000, "tool_calls": calls})
    event = told(0, request, answer)
    texts = [one["text"] for one in event.request["new"]]
    assert len(texts) == MESSAGES_MAX
    assert sum(map(len, texts)) == ASKED_TEXT_MAX
    assert event.request["new"][-1]["characters"] > 20_000
    said = event.result["answer"]["text"] + "".join(
        one["arguments"]["text"] for one in event.result["tool_calls"]
    )
    assert len(said) == ANSWER_TEXT_MAX
    assert event.result["tool_calls_total"] == 3 * CALLS_MAX
    check_value(msgspec.to_builtins(event), "event")
    assert len(msgspec.json.encode(event)) < 128 << 10


def test_what_is_odd_inside_is_told_as_far_as_it_is_understood() -> None:
    odd: list[Any] = [7, None, [], {"role": 7, "content": {"a": 1}}, {"content": [7, {"text": 7}]}]
    for one in odd:
        event = told(0, chat(one), None)
        assert isinstance(event.request["new"], list)
    request = chat({"role": "user", "content": "q"})
    usage = {"prompt_tokens": 1 << 63, "completion_tokens": True, "input_tokens": -1}
    for value in ({"choices": [{"message": {}}]}, {"content": "t", "usage": usage}):
        assert told(0, request, given(request, value)).usage == {}


def test_words_are_those_that_a_tool_gets_and_what_is_said_only_without_a_tool() -> None:
    request = chat({"role": "user", "content": "q"})
    nested = {"command": "cat a\nnmap x", "more": [{"path": "/x"}, 7], "n": None}
    calls = [
        {"function": {"name": "bash", "arguments": nested}},
        {"function": {"name": "raw", "arguments": "{no json"}},
    ]
    value = {"content": "thoughts", "tool_calls": calls}
    assert words(Call.CHAT, given(request, value).body) == "bash\ncat a\nnmap x\n/x\nraw\n{no json"
    assert words(Call.CHAT, given(request, "ls -l").body) == "ls -l"
    several = {"choices": [{"message": {"content": "a"}}, {"message": {"content": "b"}}]}
    assert words(Call.CHAT, given(request, several).body) == "a\nb"
    other = asked({"input": "q"}, Call.RESPONSES)
    assert words(Call.RESPONSES, given(other, value).body).startswith("bash\ncat a")
    assert words(Call.RESPONSES, given(other, "ls -l").body) == "ls -l"


def test_words_are_bounded_and_odd_arguments_are_taken_as_they_stand() -> None:
    request = chat({"role": "user", "content": "q"})
    deep = "[" * 500 + "]" * 500
    for arguments in ("x" * 1_000_000, deep, '"\\ud800"', {"a": ["y" * 9000] * 100}):
        call = {"function": {"name": "bash", "arguments": arguments}}
        found = words(Call.CHAT, given(request, {"tool_calls": [call] * 50}).body)
        assert found.startswith("bash\n")
        assert len(found) <= TEXT_MAX
