"""Terminals on a real node: joined again, taken over, watched, redrawn; nothing cut."""

from __future__ import annotations

import asyncio

import pytest

from skerry.errors import Conflict, InvalidRequest
from skerry.spec.command import Terminal

pytestmark = pytest.mark.root

SIZE = Terminal(24, 80)


@pytest.fixture
async def sandbox(node_client):
    async with await node_client.sandboxes.create() as made:
        yield made


async def until(live, text: bytes, seen: bytes = b"") -> bytes:
    """Returns what came up to the text."""
    async with asyncio.timeout(20):
        async for event in live:
            seen += event.stdout or b""
            if text in seen:
                return seen
    raise AssertionError(seen)


async def until_free(shell):
    """Returns when nobody holds its terminal."""
    async with asyncio.timeout(20):
        while (await shell.refresh()).holder is not None:  # noqa: ASYNC110 - it is elsewhere
            await asyncio.sleep(0.02)


async def begin(sandbox, command=("bash", "--norc"), **options):
    return await sandbox.start(
        command, terminal=SIZE, interactive=True, env={"PS1": "> "}, **options
    )


async def test_who_joins_again_sees_the_screen_and_goes_on_typing(live_node, sandbox):
    shell = await begin(sandbox)
    async with shell.attach(terminal=SIZE) as live:
        await until(live, b"> ")
        await live.send(b"x=41; echo mark-$((x + 1))\n")
        await until(live, b"mark-42")
    assert await shell.poll() is None  # leaving does not end it
    async with live_node.client() as other:
        again = await (await other.sandboxes.get(sandbox.id)).command(shell.op_id)
        async with again.attach(terminal=Terminal(40, 132)) as live:
            await until(live, b"mark-42")
            await live.send(b"stty size; exit $((x - 38))\n")
            await until(live, b"40 132")
            result = None
            async for event in live:
                result = event.result or result
    assert result.exit_code == 3


async def test_second_client_is_told_who_types_and_may_watch_or_take_over(sandbox):
    shell = await begin(sandbox)
    async with shell.attach(terminal=SIZE, who="ann") as first:
        await until(first, b"> ")
        assert (await shell.refresh()).holder == "ann"
        with pytest.raises(Conflict, match="ann holds the terminal") as told:
            async with shell.attach(who="bob"):
                raise AssertionError("it is told before the block begins")
        assert told.value.fields["holder"] == "ann"
        async with shell.attach(watch=True) as watcher:
            await first.send(b"echo seen-$((1 + 1))\n")
            await until(watcher, b"seen-2")
            await watcher.send(b"x")
            with pytest.raises(Conflict, match="watches"):
                await until(watcher, b"never")
        async with shell.attach(terminal=SIZE, who="bob", takeover=True) as second:
            with pytest.raises(Conflict, match="taken over by bob") as told:
                await until(first, b"never")
            assert told.value.fields["by"] == "bob"
            await second.send(b"echo mine-$((2 + 2))\n")
            await until(second, b"mine-4")
            assert (await shell.refresh()).holder == "bob"
    await until_free(shell)
    assert await shell.poll() is None
    await shell.kill()


async def test_full_screen_program_is_redrawn_for_who_joins_with_the_same_size(sandbox):
    screen = await begin(sandbox, ["perl", "-e", PERL])
    async with screen.attach(terminal=SIZE) as live:
        await until(live, b"drawn 24 80")
    for _ in range(2):
        async with screen.attach(terminal=SIZE) as live:
            seen = await until(live, b"drawn 24 81")
            await until(live, b"drawn 24 80", seen.rpartition(b"drawn 24 81")[2])
    await screen.kill()


PERL = r"""$| = 1;
sub draw { my $s = `stty size`; print "drawn $s" }
$SIG{WINCH} = \&draw;
draw();
select(undef, undef, undef, 0.05) while 1;
"""


async def test_terminal_does_not_cut_output(sandbox):
    """(report 14)"""
    command = await sandbox.start(
        "seq 200000", terminal=SIZE, output_limit=4 << 20, interactive=True
    )
    out = bytearray()
    async for event in command.output():
        out += event.stdout or b""
    assert bytes(out) == "".join(f"{n}\r\n" for n in range(1, 200_001)).encode()


async def test_resize_by_a_handle_reaches_the_program(sandbox):
    shell = await begin(sandbox)
    await shell.resize(33, 111)
    async with shell.attach() as live:
        await live.send(b"stty size\n")
        await until(live, b"33 111")
        await live.resize(44, 99)
        await live.send(b"stty size\n")
        await until(live, b"44 99")
    with pytest.raises(InvalidRequest):
        await shell.resize(0, 1)
    await shell.kill()
    plain = await sandbox.start("sleep 5")
    with pytest.raises(Conflict, match="no terminal"):
        await plain.resize(10, 10)
    await plain.kill()


async def test_terminal_outlives_a_lost_client_and_is_free_then(live_node, sandbox):
    shell = await begin(sandbox)
    async with live_node.client() as other:
        again = await (await other.sandboxes.get(sandbox.id)).command(shell.op_id)
        manager = again.attach(terminal=SIZE, who="ann")
        live = await manager.__aenter__()
        await until(live, b"> ")
        live._socket._response.connection.transport.abort()  # no goodbye
        await until_free(shell)
        await manager.__aexit__(None, None, None)
    async with shell.attach(terminal=SIZE) as live:
        await live.send(b"echo still-$((3 + 4))\n")
        await until(live, b"still-7")
    await shell.kill()
