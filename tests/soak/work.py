"""What honest clients do: each scenario makes sandboxes of its own and checks every answer."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from skerry.errors import Fault, SkerryError
from skerry.spec.sandbox import State
from soak import hostile, jobs
from soak.client import Client, Stopped

BIG = 200_000  # lines of the streamed command


async def commands(client: Client) -> None:
    """Several commands; repeats get the recorded answers, and nothing ran twice."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        known: list[tuple[str, Any]] = []
        told: set[str] = set()
        for _ in range(client.chance.randint(1, 6)):
            nonce, status = client.nonce(), client.chance.choice((0, 0, 1, 7, 255))
            line = f"echo {nonce} >>/root/log; echo {nonce}; echo e{nonce} >&2; exit {status}"
            told.add(nonce)
            with contextlib.suppress(Stopped):
                result = await client.run(sandbox, line)
                right = (status, f"{nonce}\n".encode(), f"e{nonce}\n".encode())
                got = (result.exit_code, result.stdout, result.stderr)
                client.expect(got == right, f"ran {line!r}: {result}", begin)
                known.append((line, result))
            if client.chance.random() < 0.3:
                await asyncio.sleep(client.chance.uniform(0, 0.5))
        for line, result in known:
            with contextlib.suppress(Stopped):
                work = sandbox.run(line, op_id=result.op_id)
                again = await client.tell.op("run", work)
                client.expect(again == result, f"a repeat of {result} got {again}", begin)
        log = await client.run(sandbox, "cat /root/log")
        seen = log.text.split()
        twice = {nonce for nonce in seen if seen.count(nonce) > 1}
        client.expect(not twice, f"ran twice: {twice}", begin, excuse=())
        acknowledged = {result.text.strip() for _, result in known}
        client.expect(acknowledged <= set(seen), f"lost: {acknowledged - set(seen)}", begin)
        client.expect(set(seen) <= told, f"unknown: {set(seen) - told}", begin, excuse=())


async def timeouts(client: Client) -> None:
    """A timeout ends the whole tree, keeps what was written, and is told from a signal."""
    begin = time.monotonic()
    async with client.sandbox(cpu_class="latency-sensitive") as sandbox:
        line = "echo before; setsid sleep 300 & sleep 300"
        result = await client.run(sandbox, line, timeout=client.chance.uniform(0.2, 1.0))
        # On a busy machine the time may be over before the shell has said a word.
        said = result.stdout in {b"", b"before\n"}
        right = result.timed_out and said and not result.oom_killed
        client.expect(right, f"a timeout is told as {result}", begin)
        left = await client.run(
            sandbox,
            "n=0; for f in /proc/[0-9]*/comm; do read c <$f && [ $c = sleep ] && n=1; done; echo $n",
        )
        client.expect(left.stdout == b"0\n", f"after a timeout sleeps run: {left}", begin)


async def handles(client: Client) -> None:
    """A command in the background reads what is sent over every fault, once and in order."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        op_id = f"{client.chance.getrandbits(128):032x}"
        line = 'while read -r line; do echo "<$line>"; done; echo end >&2; exit 3'
        handle = await client.tell.op("start", sandbox.start(line, interactive=True, op_id=op_id))
        sent = []
        for _ in range(client.chance.randint(1, 12)):
            sent.append(client.nonce())
            await client.tell.op("send", handle.send(f"{sent[-1]}\n"))
            await asyncio.sleep(client.chance.uniform(0, 0.3))
        await client.tell.op("send", handle.close_stdin())
        limit = client.patience(sandbox)
        result = await client.tell.op("status", handle.wait(limit - 30), limit=limit)
        right = "".join(f"<{nonce}>\n" for nonce in sent).encode()
        got = (result.exit_code, result.stdout, result.stderr)
        client.expect(got == (3, right, b"end\n"), f"fed {sent}, it gave {result}", begin)


async def cancels(client: Client) -> None:
    """A task that is cancelled here ends the command inside."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        op_id = f"{client.chance.getrandbits(128):032x}"
        task = asyncio.create_task(sandbox.run("sleep 300", op_id=op_id))
        await asyncio.sleep(client.chance.uniform(0.0, 0.3))
        task.cancel()
        await asyncio.wait((task,))
        with contextlib.suppress(Stopped):
            operations = await client.tell.op("ops", sandbox.ops())
            if not any(one.op_id == op_id for one in operations):
                return  # it never left
            status = await client.tell.op("status", sandbox.op(op_id, wait=20.0))
            ended = status.result is not None and status.result.cancelled
            # The SDK's cancel is one request: a connection that is lost takes it along.
            client.expect(
                ended or status.error is not None,
                f"a cancelled command is {status.state}",
                begin,
                excuse=("cut", "stall", "node", "both", "disk"),
            )


async def files(client: Client) -> None:
    """Files and trees come back as they were written."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        for n in range(client.chance.randint(1, 4)):
            content = client.chance.randbytes(client.chance.choice((0, 1, 4096, 65_537, 400_000)))
            path = f"/root/{n} ä\n/file"
            await client.tell.op("file", sandbox.files.write(path, content))
            back = await client.tell.op("file", sandbox.files.read(path))
            client.expect(back == content, f"a file of {len(content)} came back otherwise", begin)
            info = await client.tell.op("file", sandbox.files.stat(path))
            client.expect(info.size == len(content), f"stat says {info}", begin)
            await client.tell.op("file", sandbox.files.rename(path, f"/root/moved{n}"))
            there = await client.tell.op("file", sandbox.files.exists(path))
            client.expect(not there, "a renamed file is still there", begin)
        seen = await client.tell.op("file", sandbox.files.list("/root"))
        names = {entry.name for entry in seen}
        client.expect({f"moved{i}" for i in range(n + 1)} <= names, f"listed {names}", begin)
        await client.tell.op("file", sandbox.files.remove("/root", recursive=True))


async def streams(client: Client) -> None:
    """A streamed command's output is whole, or the stream says that it broke, or what is missing.

    A lost connection is repaired: of long output that came meanwhile only the ends are kept.
    """
    begin = time.monotonic()
    async with client.sandbox() as sandbox:

        async def read() -> tuple[Any, str, int, int]:
            digest, size, missing, result = hashlib.sha256(), 0, 0, None
            async for event in sandbox.stream(["seq", str(BIG)]):
                if event.stdout:
                    digest.update(event.stdout)
                    if event.at is not None:
                        missing = event.at - size
                    size += len(event.stdout)
                result = event.result
            return result, digest.hexdigest(), size, missing

        result, digest, size, missing = await client.tell.op("stream", read())
        whole = "".join(f"{n}\n" for n in range(1, BIG + 1)).encode()
        right = result is not None and result.exit_code == 0
        if right and missing:
            right = missing > 0 and size + missing == len(whole) == result.stdout_total
        else:
            right = right and digest == hashlib.sha256(whole).hexdigest()
        client.expect(right, f"{size} bytes streamed of {len(whole)}: {result}", begin)


async def batch(client: Client) -> None:
    """A batch is all there or not at all."""
    begin = time.monotonic()
    count = client.chance.randint(2, 12)
    work = client.sdk.sandboxes.create_many(
        count, "container", memory="128MiB", pids=64, labels=client.labels
    )
    made = await client.tell.op("batch", work)
    try:
        client.expect(len(made) == count, f"{len(made)} of {count} came", begin, excuse=())
        await asyncio.gather(*(client.run(one, ["true"]) for one in made))
    finally:
        try:
            await client.tell.op("destroy_many", client.sdk.sandboxes.destroy_many(made))
        except Stopped:
            for one in made:
                await client.destroy(one)


async def ends(client: Client) -> None:
    """Idle timeout and ttl end a sandbox, and its answers stay."""
    begin = time.monotonic()
    spec = client.chance.choice(({"idle_timeout": 0.7}, {"ttl": 1.0}))
    async with client.sandbox(**spec) as sandbox:
        op_id = f"{client.chance.getrandbits(128):032x}"
        line = ["echo", client.nonce()]
        try:
            first = await client.tell.op(
                "run", sandbox.run(line, op_id=op_id), own=("sandbox_failed", "conflict")
            )
        except Stopped:
            first = None
        info = await client.tell.op("wait", sandbox.wait(State.STOPPED, timeout=30.0))
        client.expect(info.state is State.STOPPED, f"{spec} led to {info.state}", begin)
        if first is not None:
            again = await client.tell.op("run", sandbox.run(line, op_id=op_id))
            client.expect(again == first, f"after the end a repeat got {again}", begin)


async def forward(client: Client) -> None:
    """A reverse forward carries bytes both ways."""
    begin = time.monotonic()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(await reader.readline())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def over(sandbox: Any, nonce: str) -> Any:
        async with sandbox.reverse_forward(7000, "127.0.0.1", port):
            line = f"exec 3<>/dev/tcp/127.0.0.1/7000; echo {nonce} >&3; cat <&3"
            return await sandbox.run(["bash", "-c", line], timeout=20.0)

    try:
        async with client.sandbox() as sandbox:
            nonce = client.nonce()
            result = await client.tell.op("forward", over(sandbox, nonce))
            right = result.stdout == f"{nonce}\n".encode()
            cuts = ("cut", "stall", "node", "both", "disk")
            client.expect(right, f"the forward gave {result}", begin, excuse=cuts)
    finally:
        server.close()


SERVER = (
    "use IO::Socket::INET; my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 9000, "
    "Listen => 8, ReuseAddr => 1) or exit 9; $| = 1; print 'up'; "
    "while (my $c = $s->accept) { my $l = <$c>; print $c $l; close $c }"
)


LINE = """perl -e "$SERVER" >/root/up 2>&1 &
for n in $(seq 100); do [ -s /root/up ] && break; sleep 0.05; done; cat /root/up"""


async def ports(client: Client) -> None:
    """A server inside is reached from outside, again and again."""
    begin = time.monotonic()

    async def ask(sandbox: Any, nonce: bytes) -> bytes:
        async with sandbox.connect(9000) as connection:
            await connection.write(nonce)
            answer = b""
            while data := await connection.read():
                answer += data
            return answer

    async with client.sandbox() as sandbox:
        up = await client.run(sandbox, LINE, env={"SERVER": SERVER})
        client.expect(up.stdout == b"up", f"the server inside: {up}", begin)
        for _ in range(client.chance.randint(1, 5)):
            nonce = client.nonce().encode() + b"\n"
            answer = await client.tell.op("forward", ask(sandbox, nonce))
            client.expect(answer == nonce, f"port 9000 answered {answer!r}", begin)


async def snapshot(client: Client) -> None:
    """What was written is in the diff."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        await client.run(sandbox, "mkdir /srv/new && echo new >/srv/new/file")
        changes = await client.tell.op("diff", sandbox.diff())
        paths = {change.path for change in changes}
        client.expect("/srv/new/file" in paths, f"the diff has {paths}", begin)


async def commits(client: Client) -> None:
    """What was written is in the layer, and in a sandbox made from it."""
    begin = time.monotonic()
    nonce = client.nonce()
    name = f"workspace/soak-{nonce}"
    async with client.sandbox() as sandbox:
        await client.run(sandbox, f"mkdir /srv/new && echo {nonce} >/srv/new/file")
        await client.tell.op("commit", sandbox.commit(name))
    try:
        async with client.sandbox(layers=(name,)) as child:
            result = await client.run(child, ["cat", "/srv/new/file"])
            client.expect(result.text == f"{nonce}\n", f"the layer gave {result}", begin)
    finally:
        await client.tell.op("commit", client.sdk.images.remove(name))


async def forks(client: Client) -> None:
    """Forks begin with what their parent wrote, all of them or none."""
    begin = time.monotonic()
    nonce = client.nonce()
    async with client.sandbox() as parent:
        await client.run(parent, f"echo {nonce} >/root/nonce; mkdir /srv/d; rm -r /usr/share/man")
        made = await client.tell.op("batch", parent.fork(client.chance.randint(1, 4)))
        try:
            for fork in made:
                result = await client.run(
                    fork, "cat /root/nonce; ls -d /srv/d /usr/share/man; true"
                )
                wanted = f"{nonce}\n/srv/d\n"
                client.expect(result.text == wanted, f"a fork gave {result}", begin)
        finally:
            for fork in made:
                await client.destroy(fork)


async def sessions(client: Client) -> None:
    """A persistent shell keeps what was set, over every fault; nothing runs twice."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        session = await client.tell.op("start", sandbox.session())
        limit = client.patience(sandbox)
        await client.tell.op("run", session.run("cd /tmp; n=0"), limit=limit)
        for turn in range(1, client.chance.randint(2, 12)):
            op_id = f"{client.chance.getrandbits(128):032x}"
            result = await client.tell.op(
                "run", session.run("n=$((n+1)); echo $n $PWD", op_id=op_id), limit=limit
            )
            if result.session_reset:
                break  # the shell was lost, and the result says so
            client.expect(result.text == f"{turn} /tmp\n", f"turn {turn} gave {result}", begin)
            await asyncio.sleep(client.chance.uniform(0, 0.2))


async def pauses(client: Client) -> None:
    """Paused, its command stands still; any request wakes it, and nothing is lost."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        line = "for n in $(seq 20); do echo $n; sleep 0.03; done"
        work = client.run(sandbox, line, own=hostile.OWN)  # deleted under it if a pause fails
        running = asyncio.create_task(work)
        try:
            await asyncio.sleep(client.chance.uniform(0, 0.4))
            with contextlib.suppress(Stopped):
                await client.tell.op("pause", sandbox.pause())
                await asyncio.sleep(client.chance.uniform(0, 0.5))
                if client.chance.random() < 0.5:
                    await client.tell.op("pause", sandbox.resume())
            with contextlib.suppress(Stopped):
                await hostile.alive(client, sandbox, begin, "a pause")
        finally:
            await asyncio.wait((running,))
        result = running.result()
        whole = "".join(f"{n}\n" for n in range(1, 21)).encode()
        client.expect(result.ok and result.stdout == whole, f"after a pause: {result}", begin)


async def stops(client: Client) -> None:
    """A stopped sandbox keeps its answers and runs nothing more."""
    begin = time.monotonic()
    async with client.sandbox() as sandbox:
        line = ["echo", client.nonce()]
        first = await client.run(sandbox, line)
        info = await client.tell.op("stop", sandbox.stop())
        client.expect(info.state is State.STOPPED, f"stopped, it is {info.state}", begin)
        again = await client.tell.op("run", sandbox.run(line, op_id=first.op_id))
        client.expect(again == first, f"after a stop a repeat got {again}", begin)
        try:
            await sandbox.run(line)
        except SkerryError as error:
            client.expect(error.fault is not Fault.BUG, f"a run after a stop: {error!r}", begin)
        else:
            client.expect(False, "a stopped sandbox ran a command", begin, excuse=())


Scenario = Callable[[Client], Awaitable[None]]

# How often each is chosen, relatively.
SCENARIOS: dict[str, tuple[Scenario, float]] = {
    "commands": (commands, 6.0),
    "timeouts": (timeouts, 1.0),
    "cancels": (cancels, 1.0),
    "handles": (handles, 1.5),
    "files": (files, 2.0),
    "streams": (streams, 1.0),
    "batch": (batch, 1.5),
    "ends": (ends, 1.0),
    "forward": (forward, 1.0),
    "ports": (ports, 1.0),
    "snapshot": (snapshot, 0.7),
    "commits": (commits, 0.4),
    "forks": (forks, 0.7),
    "sessions": (sessions, 1.5),
    "pauses": (pauses, 1.0),
    "stops": (stops, 0.7),
    **jobs.SCENARIOS,
    **hostile.SCENARIOS,
}
