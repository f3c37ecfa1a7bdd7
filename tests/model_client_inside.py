"""What a scaffold does in a sandbox: OpenAI's own clients, or too many connections.

python3 model_client_inside.py KIND HOW_MANY_AT_ONCE OPTIONS_OF_THE_CLIENT
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import signal
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

from openai import AsyncOpenAI, OpenAI

ASKED: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": "2 + 2?"}]}
INPUT: dict[str, Any] = {"model": "policy", "input": ASKED["messages"]}


async def stream(client: Any) -> tuple[Any, Any]:
    """A chat as a stream: its text, and if there is a usage, token ids and the sum too."""
    raw = await client.chat.completions.with_raw_response.create(
        **ASKED, stream=True, logprobs=True, stream_options={"include_usage": True}
    )
    text, tokens, usage = "", [], None
    async for chunk in raw.parse():
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            tokens += getattr(choice, "token_ids", None) or []
    return ([text, tokens, usage.total_tokens] if usage else text), raw


async def responses_stream(client: Any) -> tuple[Any, Any]:
    """A response as a stream; its pieces must add up to it."""
    text = ""
    async with client.responses.stream(**INPUT) as events:
        async for event in events:
            if event.type == "response.output_text.delta":
                text += event.delta
        whole = (await events.get_final_response()).output_text
    return (text if text == whole else [text, whole]), None


async def one(client: Any, kind: str) -> dict[str, Any]:
    """Asks once; returns the text and how often the client has tried again."""
    try:
        if kind == "responses":
            raw = await client.responses.with_raw_response.create(**INPUT)
            text = raw.parse().output_text
        elif kind == "responses-stream":
            text, raw = await responses_stream(client)
        elif kind == "stream":
            text, raw = await stream(client)
        else:
            raw = await client.chat.completions.with_raw_response.create(**ASKED)
            message = raw.parse().choices[0].message
            text = message.content
            if kind == "tool":
                function = message.tool_calls[0].function
                text = [function.name, json.loads(function.arguments)]
        return {"text": text, "retries": raw.retries_taken if raw else None}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        return {"error": type(error).__name__, "text": str(error)}


def blocking(options: dict[str, Any]) -> dict[str, Any]:
    """Asks once with the client that blocks, whose timeouts are those of a socket."""
    raw = OpenAI(**options).chat.completions.with_raw_response.create(**ASKED)
    text = raw.parse().choices[0].message.content  # type: ignore[union-attr]
    return {"text": text, "retries": raw.retries_taken}


def flood(port: int, many: int) -> None:
    """Opens connections that never end their request, and stays."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    kept = []
    for _ in range(many):
        connection = socket.socket()
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.connect(("127.0.0.1", port))
        kept.append(connection)
    for connection in kept:
        with contextlib.suppress(OSError):
            connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nA: ")
    signal.pause()


async def main(kind: str, many: int, options: dict[str, Any]) -> None:
    """Prints what each of the requests came to."""
    client = AsyncOpenAI(**options)
    found = await asyncio.gather(*(one(client, kind) for _ in range(many)))
    print(json.dumps(found))


if __name__ == "__main__":
    KIND, MANY, OPTIONS = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    ASKED |= OPTIONS.pop("asked", {})
    if KIND == "flood":
        flood(urlsplit(str(OpenAI().base_url)).port or 0, MANY)
    elif KIND == "blocking":
        print(json.dumps([blocking(OPTIONS)]))
    else:
        asyncio.run(main(KIND, MANY, OPTIONS))
