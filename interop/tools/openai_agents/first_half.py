"""The first half of a run, in a process that ends: only the state and the snapshot stay."""

import asyncio
import json
import os
import sys
from pathlib import Path

from agents import RunConfig, Runner
from agents.run_config import SandboxRunConfig
from agents.sandbox import LocalSnapshotSpec
from scripted_agents import agent, outputs, shell

from skerry.compat.openai_agents import SkerrySandboxClient, SkerrySandboxClientOptions

persistence, place, label = sys.argv[1:]


async def main():
    client = SkerrySandboxClient()
    options = SkerrySandboxClientOptions(
        image=os.environ["INTEROP_IMAGE"], workspace_persistence=persistence, labels={"job": label}
    )
    snapshot = LocalSnapshotSpec(base_path=Path(place, "snapshots"))
    session = await client.create(options=options, snapshot=snapshot)
    async with session:
        config = RunConfig(tracing_disabled=True, sandbox=SandboxRunConfig(session=session))
        worker = agent(shell("mkdir work; echo first > work/progress; touch /opt/outside; ls /opt"))
        assert "outside" in outputs(await Runner.run(worker, "go", run_config=config))[0]
    state = client.serialize_session_state(session.state)
    Path(place, "state.json").write_text(json.dumps(state))


asyncio.run(main())
