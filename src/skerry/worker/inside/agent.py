"""A minimal bash-tool agent (uploaded into the sandbox; stdlib only).

Talks OpenAI chat completions to a port on loopback, runs the commands that the model asks for, and
stops when it asks for none. Reads its settings as JSON from standard input; prints a line a turn.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command line with bash in the repository and return its output.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command line."}},
            "required": ["command"],
        },
    },
}


def ask(settings: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the model's next message; ends the program if the endpoint refuses."""
    body = {
        "model": settings["model"],
        "messages": messages,
        "tools": [BASH],
        **settings["options"],
    }
    request = urllib.request.Request(  # noqa: S310 - loopback, given by the worker
        settings["url"] + "/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "Content-Type": "application/json",
            "Authorization": f"Bearer {settings['api_key']}",
        },
    )
    # No proxy of the environment: the endpoint is on loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=settings["request_timeout_s"]) as answer:
            choices = json.loads(answer.read())["choices"]
    except urllib.error.HTTPError as error:
        sys.exit(f"the model's endpoint answered {error.code}: {error.read()[:500]!r}")
    message: dict[str, Any] = choices[0]["message"]
    return message


def run(command: str, settings: dict[str, Any]) -> str:
    """Returns a command's status and output, cut in the middle; all it started ends at the timeout."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = f"exit status {child.wait(settings['command_timeout_s'])}"
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = f"stopped after {settings['command_timeout_s']} s"
        limit = settings["output_limit"]
        size = out.tell()
        out.seek(0)
        if size <= limit:
            text = out.read().decode("utf-8", "replace")
        else:
            head = out.read(limit // 2).decode("utf-8", "replace")
            out.seek(size - limit // 2)
            tail = out.read().decode("utf-8", "replace")
            text = f"{head}\n[... {size - limit} bytes left out ...]\n{tail}"
    return f"{text}\n[{status}]"


def tool_answer(call: dict[str, Any], settings: dict[str, Any]) -> str:
    """Returns what one tool call gives: output, or what is wrong with the call."""
    function = call.get("function") or {}
    if function.get("name") != "bash":
        return f"there is no tool {function.get('name')!r}; use bash"
    try:
        command = json.loads(function.get("arguments") or "{}")["command"]
    except (ValueError, KeyError, TypeError):
        return 'the arguments must be JSON like {"command": "ls"}'
    if not isinstance(command, str):
        return "command must be a text"
    print(f"$ {command[:200]}", flush=True)
    return run(command, settings)


def main() -> None:
    """Works until the model is done or a bound is reached."""
    settings = json.loads(sys.stdin.read())
    until = time.monotonic() + settings["seconds"]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": settings["system"]},
        {"role": "user", "content": settings["prompt"]},
    ]
    for _ in range(settings["turns"]):
        if time.monotonic() > until:
            print("out of time", flush=True)
            return
        message = ask(settings, messages)
        calls = message.get("tool_calls") or []
        kept = {"role": "assistant", "content": message.get("content") or ""}
        if calls:
            kept["tool_calls"] = calls
        messages.append(kept)
        if not calls:
            print(f"done: {(message.get('content') or '')[:500]}", flush=True)
            return
        for call in calls:
            answer = tool_answer(call, settings)
            messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": answer})
    print("out of turns", flush=True)


if __name__ == "__main__":
    main()
