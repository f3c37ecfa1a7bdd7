"""What trainers give, completed; and complete answers as events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from skerry.errors import InvalidRequest
from skerry.spec import values
from skerry.worker.model import answers, canonical, events
from skerry.worker.model.answers import complete
from skerry.worker.model.book import Asked, Call

decode = msgspec.json.decode


def asked(call: Call = Call.CHAT, **fields: Any) -> Asked:
    body = {"model": "policy", **fields}
    if call is Call.CHAT:
        body.setdefault("messages", [])
    data = msgspec.json.encode(body)
    return Asked(ordinal=3, call=call, digest="d", relay="a" * 32, body=data, at=1700000000.7)


def streamed(call: Call, whole: dict[str, Any], *, usage: bool = False) -> list[dict[str, Any]]:
    data = events.render(call, whole, usage=usage)
    assert data == events.render(call, whole, usage=usage)
    lines = [line for line in data.decode().split("\n") if line.startswith("data: ")]
    if call is Call.CHAT:
        assert lines.pop() == "data: [DONE]"
    return [decode(line.removeprefix("data: ")) for line in lines]


def test_a_text_becomes_a_whole_completion_the_same_each_time() -> None:
    answer = complete(asked(), "four")
    assert answer == complete(asked(), {"content": "four"})
    whole = decode(answer.body)
    assert (whole["object"], whole["created"], whole["model"]) == (
        "chat.completion",
        1700000000,
        "policy",
    )
    assert whole["choices"] == [
        {
            "index": 0,
            "finish_reason": "stop",
            "logprobs": None,
            "message": {"role": "assistant", "content": "four"},
        }
    ]
    other = Asked(ordinal=4, call=Call.CHAT, digest="d", relay="b" * 32, body=b"{}", at=0)
    assert answers.ident(other) != answers.ident(asked())


def test_what_a_trainer_gives_is_passed_on_field_by_field() -> None:
    given = {
        "id": "mine",
        "prompt_token_ids": [1, 2],
        "usage": {"prompt_tokens": 2},
        "weights": {"step": 7},
        "choices": [
            {
                "message": {"content": "hi", "mood": "calm"},
                "finish_reason": "length",
                "token_ids": [9],
                "logprobs": {"content": [{"token": "hi", "logprob": -0.5}]},
            }
        ],
    }
    whole = decode(complete(asked(), given).body)
    assert (whole["id"], whole["prompt_token_ids"], whole["weights"]) == (
        "mine",
        [1, 2],
        {"step": 7},
    )
    choice = whole["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["token_ids"] == [9]
    assert choice["message"] == {"role": "assistant", "content": "hi", "mood": "calm"}


def test_a_call_of_a_tool_is_completed() -> None:
    given = {"tool_calls": [{"function": {"name": "run", "arguments": {"b": 1, "a": "x"}}}]}
    choice = decode(complete(asked(), given).body)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert decode(call["function"]["arguments"]) == {"b": 1, "a": "x"}


def test_an_error_keeps_its_status_and_takes_the_shape() -> None:
    answer = complete(asked(), {"error": "too many", "status": 429})
    assert answer.status == 429
    assert decode(answer.body)["error"] == {
        "message": "too many",
        "type": "rate_limit_error",
        "param": None,
        "code": None,
    }
    assert complete(asked(), {"error": {"message": "x", "code": "full"}}).status == 500


@pytest.mark.parametrize(
    "given",
    [
        None,
        7,
        [],
        {},
        {"choices": []},
        {"choices": ["x"]},
        {"choices": [{}]},
        {"choices": [{"message": {"content": 7}}]},
        {"tool_calls": [{"function": {}}]},
        {"tool_calls": [{"function": {"name": "f", "arguments": 7}}]},
        {"content": "x", "usage": object()},
        {"error": "x", "status": 200},
        {"error": {"code": 1}},
    ],
)
def test_what_is_no_answer_is_refused_by_name(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        complete(asked(), given)


@pytest.mark.parametrize(
    "given",
    [
        {"output": "x"},
        {"output": [{}]},
        {"output": [{"type": "function_call"}]},
        {"output": [{"type": "message", "content": 7}]},
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": 7}]}]},
    ],
)
def test_what_is_no_response_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        complete(asked(Call.RESPONSES), given)


def test_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ANSWER_BYTES_MAX", 1000)
    with pytest.raises(InvalidRequest, match="at most 1000"):
        complete(asked(), "x" * 1000)


def test_the_events_of_a_chat_add_up_to_it() -> None:
    text = "żółw " * 3000
    given = {
        "prompt_token_ids": [1],
        "usage": {"total_tokens": 5},
        "choices": [
            {
                "message": {
                    "content": text,
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {"function": {"name": "f", "arguments": "{" + " " * 9000 + "}"}}
                    ],
                },
                "token_ids": [4],
            }
        ],
    }
    whole = decode(complete(asked(), given).body)
    chunks = streamed(Call.CHAT, whole, usage=True)
    assert max(len(msgspec.json.encode(chunk)) for chunk in chunks) < 16_384
    assert chunks.pop()["usage"] == {"total_tokens": 5}
    assert [chunk for chunk in chunks if "prompt_token_ids" in chunk] == chunks[:1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "reasoning_content": "hm", "content": ""}
    assert "".join(delta.get("content") or "" for delta in deltas) == text
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert arguments == whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert calls[0]["id"]
    assert {call["index"] for call in calls} == {0}
    end = chunks[-1]["choices"][0]
    assert (end["finish_reason"], end["token_ids"]) == ("tool_calls", [4])
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks[:-1])


@pytest.mark.parametrize("spelled", [True, False])
def test_every_log_probability_is_told_once(spelled: bool) -> None:
    tokens = [{"token": f"t{number} ", "logprob": -number / 8} for number in range(200)]
    text = "".join(str(token["token"]) for token in tokens) if spelled else "another text"
    logprobs = {"content": tokens, "refusal": None}
    given = {"choices": [{"message": {"content": text}, "logprobs": logprobs}]}
    chunks = streamed(Call.CHAT, decode(complete(asked(), given).body))
    parts = [chunk["choices"][0] for chunk in chunks]
    told = [token for part in parts for token in ((part["logprobs"] or {}).get("content") or ())]
    assert told == tokens
    assert "".join(part["delta"].get("content") or "" for part in parts) == text


def test_the_events_of_a_response_add_up_to_it() -> None:
    given = {"content": "hello " * 2000, "tool_calls": [{"function": {"name": "f"}}]}
    whole = decode(complete(asked(Call.RESPONSES, instructions="be kind"), given).body)
    assert whole["instructions"] == "be kind"
    found = streamed(Call.RESPONSES, whole)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [found[0]["type"], found[-1]["type"]] == ["response.created", "response.completed"]
    assert found[-1]["response"] == whole
    texts = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    assert "".join(texts) == given["content"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == whole["output"]


def test_items_that_nobody_knows_are_passed_on() -> None:
    given = {"output": [{"type": "web_search_call", "query": "q"}], "status": "incomplete"}
    whole = decode(complete(asked(Call.RESPONSES), given).body)
    found = streamed(Call.RESPONSES, whole)
    assert found[-1]["type"] == "response.incomplete"
    assert [e["item"]["query"] for e in found if e["type"] == "response.output_item.done"] == ["q"]


def test_one_call_has_one_digest_however_it_is_spelled() -> None:
    one = canonical.parse(Call.CHAT, b'{"messages": [{"role":"u","content":"\\u00e9"}], "a": 1}')
    two = canonical.parse(Call.CHAT, '{"a":1,"messages":[{"content":"é","role":"u"}]}'.encode())
    assert canonical.digest(Call.CHAT, one) == canonical.digest(Call.CHAT, two)
    assert canonical.digest(Call.CHAT, one) != canonical.digest(Call.RESPONSES, one)
    two["a"] = 2
    assert canonical.digest(Call.CHAT, one) != canonical.digest(Call.CHAT, two)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 200_000,
        b'{"messages":' + b"[" * 200_000,
        b'{"messages": 1}',
        b'{"messages": [], "stream": "yes"}',
        b'{"messages": [], "model": 1}',
        b'{"messages": [], "stream_options": 1}',
        b'{"messages": [], "x": 1e999}',
        b'{"messages": [], "x": NaN}',
        b'{"messages": ["\xff"]}',
        b'{"messages": [], "x": %s}' % (b"[" * 128 + b"]" * 128),
        b'{"messages": [], "x": 18446744073709551616}',
        b'{"messages": [{"x": [-9223372036854775809]}]}',
    ],
)
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        canonical.digest(Call.CHAT, canonical.parse(Call.CHAT, body))


def test_a_body_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "BODY_BYTES_MAX", 10)
    with pytest.raises(InvalidRequest, match="at most 10"):
        canonical.parse(Call.CHAT, b'{"messages": []}')


def test_what_is_read_can_be_packed_and_read_again_at_any_depth_of_the_stack() -> None:
    deep = b"[" * (values.DEPTH_MAX - 1) + b"]" * (values.DEPTH_MAX - 1)
    body = b'{"messages": [], "n": [18446744073709551615, -9223372036854775808], "x": %s}' % deep

    def below(left: int) -> None:
        if left:
            below(left - 1)
        else:
            found = canonical.parse(Call.CHAT, body)
            assert msgspec.msgpack.decode(msgspec.msgpack.encode([[found]])) == [[found]]

    below(300)


def test_the_values_of_a_body_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "VALUES_MAX", 10)
    canonical.parse(Call.CHAT, b'{"messages": [1, 2, 3]}')
    with pytest.raises(InvalidRequest, match="more than 10 values"):
        canonical.parse(Call.CHAT, b'{"messages": [1, 2, 3], "x": [1, 2, 3, 4, 5, 6]}')


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("call", "given"),
    [
        (Call.CHAT, {"content": "x", "more": nested(values.DEPTH_MAX)}),
        (Call.CHAT, {"content": "x", "seed": 1 << 70}),
        (Call.CHAT, {"error": {"message": "x", "more": nested(values.DEPTH_MAX)}}),
        (Call.RESPONSES, {"output": [], "status": []}),
        (Call.RESPONSES, {"output": [], "status": {"x": 1}}),
    ],
)
def test_an_answer_that_could_not_be_handed_over_is_refused(call: Call, given: Any) -> None:
    with pytest.raises(InvalidRequest):
        complete(asked(call), given)
