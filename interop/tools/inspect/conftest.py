"""What all scenarios share: the image of a task, and a look at the node as its operator has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from inspect_ai.model import ModelOutput, ModelUsage, get_model

import skerry

IMAGE = os.environ.get("INTEROP_IMAGE", "")
LOCAL = os.environ.get("INTEROP_BACKEND") == "local"
MODEL = "mockllm/model"


@pytest.fixture(scope="session")
def agent_image(tmp_path_factory) -> Path:
    """A Dockerfile as Inspect's users have beside their task: an agent that is not root."""
    place = tmp_path_factory.mktemp("task")
    (place / "Dockerfile").write_text(
        f"FROM {IMAGE}\nRUN useradd --create-home agent\nUSER agent\nWORKDIR /home/agent\n"
    )
    return place


@pytest.fixture
def node():
    """A client of the node, beside Inspect's own."""
    with skerry.connect() as client:
        yield client
        left = client.sandboxes.list(labels={"harness": "inspect"})
        client.sandboxes.destroy_many([info.id for info in left])
        assert left == []


def says(*calls: tuple[str, dict]):
    """A model that makes these calls in turn, in each sample anew, and then says that it is done."""

    def answer(messages, _tools, _choice, _config):
        turn = sum(message.role == "assistant" for message in messages)
        output = (
            ModelOutput.for_tool_call(MODEL, *calls[turn])
            if turn < len(calls)
            else ModelOutput.from_content(MODEL, "done")
        )
        # Else Inspect counts tokens, with a file that it fetches.
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    return get_model(MODEL, custom_outputs=answer)


def told(sample) -> list[str]:
    """What the tools told the model."""
    return [message.text for message in sample.messages if message.role == "tool"]


def errors(sample) -> list[str]:
    """Which of them failed, by Inspect's own name for it."""
    return [message.error.type for message in sample.messages if getattr(message, "error", None)]
