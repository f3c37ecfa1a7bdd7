"""Agents driven by the SDK's scripted model, on Skerry or on the SDK's own local client."""

from __future__ import annotations

import asyncio
import os

from agents import RunConfig, Runner
from agents.run_config import SandboxRunConfig
from agents.sandbox import Manifest, SandboxAgent
from agents.sandbox.entries import File
from agents.sandbox.sandboxes import UnixLocalSandboxClient
from scripted_agents import Typist, agent, outputs, patch, shell

from interop.looking import sandboxes
from skerry.compat.openai_agents import SkerrySandboxClient, SkerrySandboxClientOptions

LOCAL = os.environ.get("INTEROP_BACKEND") == "local"
PATCH = """*** Begin Patch
*** Update File: calc.py
@@
 def add(a, b):
-    return a - b
+    return a + b  # mended
*** Add File: new/readme.txt
+made by a patch
*** End Patch"""
START = Manifest(
    entries={
        "calc.py": File(content=b"def add(a, b):\n    return a - b\n"),
        "sub/note.txt": File(content=b"hi\n"),
    }
)


def config(**options):
    if LOCAL:
        sandbox = SandboxRunConfig(client=UnixLocalSandboxClient(), manifest=START)
    else:
        given = SkerrySandboxClientOptions(image=os.environ["INTEROP_IMAGE"], **options)
        sandbox = SandboxRunConfig(client=SkerrySandboxClient(), options=given, manifest=START)
    return RunConfig(tracing_disabled=True, sandbox=sandbox)


async def test_an_agent_looks_fails_patches_and_runs_again():
    run = Runner.run(
        agent(
            shell("ls -R; cat sub/note.txt"),
            shell("python3 -c 'import calc; assert calc.add(2, 2) == 4'"),
            patch(PATCH),
            shell("python3 -c 'import calc; print(calc.add(2, 2))'; cat new/readme.txt"),
            shell("echo out; echo err >&2; exit 3"),
            shell("pwd", workdir="sub"),
        ),
        "go",
        run_config=config(),
    )
    result = await run
    said = outputs(result)
    assert "calc.py" in said[0]
    assert "\nhi\n" in said[0]
    assert "AssertionError" in said[1]
    assert "exited with code 1" in said[1]
    assert "\n4\nmade by a patch" in said[3]
    assert "exited with code 3" in said[4]
    assert "out\nerr" in said[4]
    assert "/sub" in said[5]
    assert result.final_output == "done"


async def test_a_terminal_is_typed_into():
    worker = SandboxAgent(name="worker", model=Typist("python3 -q", "print(6 * 7)\n", "exit()\n"))
    said = outputs(await Runner.run(worker, "go", run_config=config()))
    assert ">>>" in said[0]
    assert "42" in said[1]
    assert "exited with code 0" in said[2]


async def test_agents_side_by_side():
    async def one(number):
        worker = agent(shell(f"echo {number} > mine; sleep 1"), shell("cat mine; ls | wc -l"))
        return outputs(
            await Runner.run(worker, "go", run_config=config(cpu=0.5, labels={"job": "s"}))
        )

    for number, said in enumerate(await asyncio.gather(*(one(number) for number in range(5)))):
        assert f"\n{number}\n3" in said[1]
    if not LOCAL:
        assert not sandboxes(job="s")
