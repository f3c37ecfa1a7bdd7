"""A harness that may be killed at any moment: python rollout_harness.py URL KEY LOG [MODE]

It drives a sandbox, and two forks of it, through the SDK, and knows nothing of what became of earlier
runs of itself. Each command tells the witness at port 7000 inside its step and a nonce that it draws.
A line for each answer goes to LOG. The status is 0 at the end, 3 if an outcome is unknown.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from skerry.errors import OutcomeUnknown
from skerry.sdk.client import connect

STEPS = 30
SAY = """n=$(cat /proc/sys/kernel/random/uuid)
until (echo "$STEP $n" >/dev/tcp/127.0.0.1/7000) 2>/dev/null; do sleep 0.02; done; echo $n"""


class Harness:
    def __init__(self, log: str, *, files: bool) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._files = files

    def told(self, step: str, answer: Any) -> None:
        os.write(self._log, json.dumps([step, answer]).encode() + b"\n")

    async def command(self, sandbox, step: str, kind: int, session=None) -> None:
        argv, env = ["bash", "-c", SAY], {"STEP": step}
        if kind == 0:
            answer = (await sandbox.run(argv, env=env)).text
        elif kind == 1:
            handle = await sandbox.start(argv, env=env)
            answer = (await handle.wait()).text
        elif kind == 2:
            pieces = [event.stdout or b"" async for event in sandbox.stream(argv, env=env)]
            answer = b"".join(pieces).decode()
        else:
            answer = (await session.run(f"STEP={step}\n{SAY}")).text
        self.told(step, answer)

    async def main(self, sandbox) -> None:
        session = await sandbox.session()
        for number in range(STEPS):
            await self.command(sandbox, f"main-{number}", number % 4, session)
            if number % 5 == 1 and self._files:  # done twice, each of these would be refused
                info = await sandbox.files.write(f"/root/f{number}", "x" * number, exclusive=True)
                await sandbox.files.mkdir(f"/root/d{number}")
                found = [entry.name for entry in await sandbox.files.list("/root")]
                self.told(f"files-{number}", [info.size, *found])
            if number == 6:
                layer = await sandbox.commit("workspace/rollout-harness")
                self.told("commit", layer.digest)
            if number == 10:
                twins = await sandbox.fork(2)
                self.told("fork", [twin.id for twin in twins])
                await asyncio.gather(*(self.twin(twin, str(at)) for at, twin in enumerate(twins)))
            if number == 14:
                await sandbox.set_network([])
        await session.close()

    async def twin(self, sandbox, name: str) -> None:
        for number in range(3):
            await self.command(sandbox, f"twin{name}-{number}", number)


async def run(url: str, key: str, log: str, mode: str = "all") -> None:
    harness = Harness(log, files=mode == "all")
    async with connect(url) as client, client.rollout(key) as rollout:
        sandbox = await rollout.create(memory="128MiB", pids=64, labels={"of": key})
        await harness.main(sandbox)  # who watches destroys it, when all was heard


if __name__ == "__main__":
    try:
        asyncio.run(run(*sys.argv[1:]))
    except OutcomeUnknown as error:
        print(error, file=sys.stderr)
        sys.exit(3)
