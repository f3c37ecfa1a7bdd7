"""A sandbox client for the OpenAI Agents SDK: its agents work in Skerry's sandboxes.

    run_config = RunConfig(sandbox=SandboxRunConfig(
        client=SkerrySandboxClient(), options=SkerrySandboxClientOptions(image="debian:12")
    ))
    await Runner.run(agent, "...", run_config=run_config)

A session's workspace is kept as a commit of its sandbox, or as a tar; `resume` finds the sandbox itself
again where that still lives, paused or not, and else one that begins with what was kept.
"""

from __future__ import annotations

from skerry.compat.openai_agents.client import SkerrySandboxClient
from skerry.compat.openai_agents.options import (
    SkerrySandboxClientOptions,
    SkerrySandboxSessionState,
)
from skerry.compat.openai_agents.session import SkerrySandboxSession

__all__ = [
    "SkerrySandboxClient",
    "SkerrySandboxClientOptions",
    "SkerrySandboxSession",
    "SkerrySandboxSessionState",
]
