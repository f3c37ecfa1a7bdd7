"""A run that is interrupted while its agent waits for a command."""

import asyncio
import os
import sys
from pathlib import Path

from agents import RunConfig, Runner
from agents.run_config import SandboxRunConfig
from scripted_agents import agent, shell

from skerry.compat.openai_agents import SkerrySandboxClient, SkerrySandboxClientOptions

(label,) = sys.argv[1:]
options = SkerrySandboxClientOptions(image=os.environ["INTEROP_IMAGE"], labels={"job": label})
sandbox = SandboxRunConfig(client=SkerrySandboxClient(), options=options)


async def main():
    worker = agent(shell("echo up"), shell("sleep 600", yield_time_ms=30_000))
    run = Runner.run(worker, "go", run_config=RunConfig(tracing_disabled=True, sandbox=sandbox))
    asyncio.get_running_loop().call_later(
        1.0, lambda: Path(f"/var/tmp/skerry-interop-{label}").touch()
    )
    await run


asyncio.run(main())
