"""A harness that may be killed at any moment: python -m soak.harness URL KEY JOB WHO

It drives a sandbox of the job under the rollout key, and knows nothing of earlier lives of its own. A
line for each answer goes to standard output; the last one says how it ended. Each command notes its step
and a name that it draws in /root/log. When standard input ends, whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any

from skerry.errors import Bug, SkerryError
from skerry.sdk.client import connect

STEPS = 9
START_WITHIN_S = 30.0  # of a node that was killed
SAY = 'n=$(cat /proc/sys/kernel/random/uuid); echo "$STEP $n" >>/root/log; echo $n'


async def step(sandbox: Any, session: Any, number: int) -> str:
    """Does one step; returns what its command said."""
    argv, env = ["bash", "-c", SAY], {"STEP": str(number)}
    if number % 3 == 0:
        return (await sandbox.run(argv, env=env)).text
    if number % 3 == 1:
        return (await (await sandbox.start(argv, env=env)).wait()).text
    return (await session.run(f"STEP={number}\n{SAY}")).text


async def live(url: str, key: str, job: str, who: str) -> None:
    """One life."""
    async with connect(url, wait=START_WITHIN_S) as client, client.rollout(key) as rollout:
        sandbox = await rollout.create(memory="128MiB", pids=64, job=job, labels={"soak": who})
        session = await sandbox.session()
        for number in range(STEPS):
            say(step=number, answer=await step(sandbox, session, number))
        await session.close()


def say(**said: Any) -> None:
    """Tells whoever started this."""
    print(json.dumps(said), flush=True)


def main() -> None:
    """Lives once."""
    try:
        asyncio.run(live(*sys.argv[1:5]))
    except SkerryError as error:
        code = "untyped" if isinstance(error, Bug) else error.code
        say(code=code, message=f"{error.message[:300]} {error.fields}"[:500])
    except Exception as error:  # noqa: BLE001 - it is told
        say(code="untyped", message=repr(error)[:300])
    else:
        say(code="")


def leave_with_parent() -> None:
    """Ends this process when its standard input ends."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=leave_with_parent, daemon=True).start()
    main()
