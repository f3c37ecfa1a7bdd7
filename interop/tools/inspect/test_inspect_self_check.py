"""The suite that Inspect ships for providers, on a sandbox whose user is not root."""

from __future__ import annotations

import pytest
import pytest_asyncio
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from conftest import LOCAL


@pytest.fixture(scope="session")
def config(request):
    """The task's configuration."""
    return None if LOCAL else str(request.getfixturevalue("agent_image") / "Dockerfile")


@pytest_asyncio.fixture
async def sandbox_env(config, request):
    """One sandbox a check, made and ended as an evaluation does it."""
    if LOCAL and request.node.originalname == "test_exec_as_user":
        pytest.skip("it would add a user to this machine")
    kind = registry_find_sandboxenv("local" if LOCAL else "skerry")
    await kind.task_init("self_check", config)
    made = await kind.sample_init("self_check", config, {})
    yield made["default"]
    await kind.sample_cleanup("self_check", config, made, interrupted=False)
    await kind.task_cleanup("self_check", config, cleanup=True)
