"""Agents that do what a script says, and what they were told in return."""

from __future__ import annotations

import itertools
import re

from agents.sandbox import SandboxAgent
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses.response_custom_tool_call import ResponseCustomToolCall

_numbers = itertools.count()


def shell(cmd, **more):
    arguments = {"cmd": cmd, "yield_time_ms": 20_000, **more}
    return [function_call("exec_command", arguments, call_id=f"call{next(_numbers)}")]


def typed(session, chars, wait_ms=3000):
    arguments = {"session_id": session, "chars": chars, "yield_time_ms": wait_ms}
    return [function_call("write_stdin", arguments, call_id=f"call{next(_numbers)}")]


def patch(text):
    kind = "custom_tool_call"
    call = f"call{next(_numbers)}"
    return [
        ResponseCustomToolCall(type=kind, name="apply_patch", call_id=call, id=call, input=text)
    ]


def agent(*steps):
    model = ScriptedModel([*steps, [assistant_message("done")]])
    return SandboxAgent(name="worker", model=model)


class Typist(ScriptedModel):
    """Starts a program on a terminal, then types lines into it: its number is in the first answer."""

    def __init__(self, program, *lines):
        super().__init__([shell(program, tty=True, yield_time_ms=3000)])
        self._lines = lines

    async def get_response(self, system_instructions, input, *args, **kwargs):  # noqa: A002
        if len(self.calls) == 1:
            session = int(re.findall(r"session ID (\d+)", str(input))[-1])
            self.extend([typed(session, line) for line in self._lines])
            self.enqueue([assistant_message("done")])
        return await super().get_response(system_instructions, input, *args, **kwargs)


def outputs(result):
    return [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]
