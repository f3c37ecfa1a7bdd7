"""Work in which nothing moves is given up; work in which something does is not, however long."""

from __future__ import annotations

import asyncio

import pytest

from skerry.errors import FileRefused
from skerry.guest import files as guest_files
from skerry.guest.files import GuestFiles
from skerry.guest.stall import Stall
from skerry.wire import guest


async def test_block_in_which_nothing_moves_is_ended():
    with pytest.raises(TimeoutError):
        async with Stall(0.05):
            await asyncio.Event().wait()


async def test_time_begins_anew_with_each_move():
    async with Stall(600.0) as stall:
        stall._last -= 601.0
        stall.moved()
        stall._due()  # as its timer would: of a move it has not been so long
        await asyncio.sleep(0.05)


async def test_what_the_block_raises_comes_out_and_no_timer_stays():
    with pytest.raises(ValueError, match="its own"):
        async with Stall(0.05):
            raise ValueError("its own")
    await asyncio.sleep(0.1)  # a timer that stayed would cancel this task


async def test_without_seconds_it_is_never_ended():
    async with Stall(None) as stall:
        await asyncio.sleep(0.05)
    assert stall._timer is None


async def test_upload_whose_client_stands_still_is_given_up(connect, monkeypatch):
    monkeypatch.setattr(guest_files, "STALL_S", 0.2)
    client, agent = await connect()
    helper = GuestFiles(client, lambda: (1, bytes(16)), user=b"1000", cwd=b"/")
    ended = []

    async def content():
        yield b"ab"
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    task = asyncio.ensure_future(helper.write("/f", content()))
    await agent.expect(guest.Start)
    assert (await agent.expect(guest.Data)).data == b"ab"
    with pytest.raises(FileRefused, match="nothing moved") as caught:
        await task
    assert caught.value.fields["errno"] == 110
    await agent.expect(guest.Cancel)
    assert ended == [True]
