"""Guests that misbehave: each may hurt itself, and nothing else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from soak.client import Client, Stopped

# What a sandbox may bring upon itself.
OWN = ("sandbox_failed", "overloaded")


async def alive(client: Client, sandbox: Any, since: float, after: str) -> None:
    """The sandbox still works, for what was done to it is over."""
    nonce = client.nonce()
    result = await client.run(sandbox, ["echo", nonce])
    client.expect(result.stdout == f"{nonce}\n".encode(), f"after {after}: {result}", since)


async def memory(client: Client) -> None:
    """Takes more memory than it has: the command is killed, and the result says why."""
    begin = time.monotonic()
    async with client.sandbox(memory="64MiB") as sandbox:
        line = ["perl", "-e", '$x = "a" x (1 << 29); print length $x']
        result = await client.run(sandbox, line)
        client.expect(result.oom_killed and not result.ok, f"an OOM reads as {result}", begin)
        await alive(client, sandbox, begin, "an OOM")


async def forks(client: Client) -> None:
    """A fork bomb, ended by its timeout."""
    begin = time.monotonic()
    async with client.sandbox(pids=48) as sandbox:
        result = await client.run(
            sandbox, ["bash", "-c", "b() { b | b & }; b; sleep 60"], timeout=1.0
        )
        client.expect(not result.ok, f"a fork bomb reads as {result}", begin)
        await alive(client, sandbox, begin, "a fork bomb")


async def crowd(client: Client) -> None:
    """Every process id is taken, by commands that stay."""
    begin = time.monotonic()
    async with client.sandbox(pids=32) as sandbox:
        line = [
            "perl",
            "-e",
            "for (1..40) { my $p = fork; last if !defined $p; if (!$p) { sleep 300 } }",
        ]
        with contextlib.suppress(Stopped):
            await client.run(sandbox, line, own=OWN, timeout=10.0)
        with contextlib.suppress(Stopped):
            result = await client.run(sandbox, ["/bin/true"], own=OWN, timeout=10.0)
            client.expect(
                result.ok or result.start_error is not None or result.exit_code is not None,
                f"in a crowd /bin/true ended as {result}",
                begin,
            )


async def flood(client: Client) -> None:
    """Output without end: bounded, truncated, and said to be."""
    begin = time.monotonic()
    async with client.sandbox(cpu_class="latency-sensitive") as sandbox:
        result = await client.run(sandbox, ["yes"], timeout=2.0, output_limit=65_536)
        right = result.timed_out and result.truncated and len(result.stdout) <= 65_536
        client.expect(right, f"a flood of {result.stdout_total} reads otherwise", begin)


async def garbage(client: Client) -> None:
    """Bytes that are no text, on both streams, come out one by one as they went in."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        line = (
            "head -c 300000 /dev/urandom | tee /root/x; head -c 9000 /dev/urandom >&2; cat /root/x"
        )
        result = await client.run(sandbox, line, output_limit=1 << 20)
        half = len(result.stdout) // 2
        right = result.ok and result.stdout[:half] == result.stdout[half:] and half == 300_000
        client.expect(right and len(result.stderr) == 9000, "garbage came out otherwise", begin)


async def descriptors(client: Client) -> None:
    """Closes what it was given, and ends long afterwards."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        result = await client.run(sandbox, "exec 0<&- 1>&- 2>&-; sleep 0.3; exit 5")
        client.expect(result.exit_code == 5, f"closing its descriptors reads as {result}", begin)


async def massacre(client: Client) -> None:
    """Kills all that it can see."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        others = [
            await client.tell.op("start", sandbox.start(["sleep", "60"]), own=OWN) for _ in range(2)
        ]
        with contextlib.suppress(Stopped):
            await client.run(sandbox, "kill -9 -1; kill -9 1; kill -9 $$")
        for handle in others:
            done = await client.tell.op("status", handle.wait(30.0))
            client.expect(not done.ok, f"a killed command reads as {done}", begin)
        await alive(client, sandbox, begin, "kill -9 -1")


async def deep(client: Client) -> None:
    """A tree deeper than a path is long, and a crowd of files."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        line = (
            'perl -e \'chdir "/root"; for (1..300) { mkdir "d" x 200; chdir "d" x 200 or exit 9 }\' '
            "&& cd /tmp && for n in $(seq 300); do : >f$n; done"
        )
        result = await client.run(sandbox, line, timeout=60.0)
        client.expect(result.ok, f"a deep tree reads as {result}", begin)


async def stopped(client: Client) -> None:
    """Stops everything, itself too: its timeout ends it all the same."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        result = await client.run(sandbox, "kill -STOP -1; kill -STOP $$; sleep 60", timeout=1.0)
        client.expect(result.timed_out, f"a stopped command reads as {result}", begin)
        await alive(client, sandbox, begin, "kill -STOP -1")


Scenario = Callable[[Client], Awaitable[None]]
SCENARIOS: dict[str, tuple[Scenario, float]] = {
    "hostile memory": (memory, 0.7),
    "hostile forks": (forks, 0.5),
    "hostile crowd": (crowd, 0.5),
    "hostile flood": (flood, 0.7),
    "hostile garbage": (garbage, 0.7),
    "hostile descriptors": (descriptors, 0.5),
    "hostile massacre": (massacre, 0.7),
    "hostile deep": (deep, 0.3),
    "hostile stopped": (stopped, 0.5),
}
