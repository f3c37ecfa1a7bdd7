"""The bash-tool agent does what a model asks, within bounds."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from upstream import Answer, call, say, upstream

from skerry.errors import InvalidRequest
from skerry.worker.inside import program
from skerry.worker.policies import policy_named


async def scaffold(url: str, folder: Path, **more: Any) -> str:
    settings = {
        "url": url, "api_key": "k", "model": "m", "options": {}, "system": "s", "prompt": "p",
        "turns": 5, "seconds": 20, "request_timeout_s": 5, "command_timeout_s": 5, "output_limit": 400,
    } | more  # fmt: skip
    (folder / "agent.py").write_text(program("agent"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(folder / "agent.py"), cwd=folder,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate(json.dumps(settings).encode())
    return out.decode()


def script(*steps: tuple[int, dict[str, Any]]) -> Answer:
    left = list(steps)
    return lambda body: left.pop(0) if left else say("done")


async def test_commands_run_and_their_output_goes_back(tmp_path: Path) -> None:
    async with upstream(script(call("echo one; exit 3", "pwd"), say("finished"))) as server:
        out = await scaffold(server.url, tmp_path)
    assert "done: finished" in out
    assert server.keys == ["Bearer k"] * 2
    tools = [one for one in server.asked[1]["messages"] if one["role"] == "tool"]
    assert tools[0]["content"] == "one\n\n[exit status 3]"
    assert str(tmp_path) in tools[1]["content"]
    assert [one["tool_call_id"] for one in tools] == ["c0", "c1"]


async def test_floods_hangs_and_nonsense_are_answered(tmp_path: Path) -> None:
    odd = {"id": "x", "function": {"name": "bash", "arguments": "no json"}}
    other = {"id": "y", "function": {"name": "python", "arguments": "{}"}}
    message = {"role": "assistant", "tool_calls": [odd, other]}
    steps = script(
        call("yes | head -c 100000"),
        call("sleep 60 & sleep 60"),
        (200, {"choices": [{"message": message}]}),
    )
    async with upstream(steps) as server:
        await scaffold(server.url, tmp_path, command_timeout_s=0.2)
    flood, hang, bad, unknown = (
        one["content"] for one in server.asked[-1]["messages"] if one["role"] == "tool"
    )
    assert "bytes left out" in flood
    assert len(flood) < 600
    assert "stopped after" in hang
    assert "JSON" in bad
    assert "no tool" in unknown


async def test_a_model_that_never_stops_is_stopped(tmp_path: Path) -> None:
    async with upstream(lambda body: call("true")) as server:
        out = await scaffold(server.url, tmp_path, turns=3)
    assert "out of turns" in out
    assert len(server.asked) == 3


def test_what_is_no_policy_is_refused() -> None:
    for name in ("golden", "cheat:none", "gold:x"):
        with pytest.raises(InvalidRequest):
            policy_named(name)
