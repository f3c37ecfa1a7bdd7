"""Watching in real sandboxes: nothing is missed in silence."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from live_node import LiveNode
from skerry.errors import FileDenied, FileRefused

pytestmark = pytest.mark.root

PATIENCE_S = 60.0


@pytest.fixture
async def box(node_client):
    async with await node_client.sandboxes.create() as sandbox:
        yield sandbox


class Events:
    """Collects events up to one that is waited for."""

    def __init__(self, stream):
        self.stream = stream
        self.seen = []

    async def until(self, kind, path=None):
        async with asyncio.timeout(PATIENCE_S):
            async for event in self.stream:
                self.seen.append(event)
                if event.kind == kind and (path is None or event.path == path):
                    return event
        raise AssertionError(f"the watch ended without {kind} {path}: {self.seen[-5:]}")


async def test_what_happens_is_told_with_its_path(box):
    await box.run("mkdir -p /srv/w/sub && touch /srv/w/sub/old")
    async with aclosing(box.files.watch("/srv/w", recursive=True)) as stream:
        events = Events(stream)
        assert (await events.until("ready")).path == "/srv/w"
        await box.run("echo x > /srv/w/sub/old")
        await events.until("modified", "/srv/w/sub/old")
        await box.run("chmod 600 /srv/w/sub/old")
        await events.until("attributes", "/srv/w/sub/old")
        await box.run("mv /srv/w/sub/old /srv/w/new")
        assert (await events.until("moved", "/srv/w/new")).source == "/srv/w/sub/old"
        await box.run("mv /srv/w/sub /srv/w/other && touch /srv/w/other/in")
        moved = await events.until("moved", "/srv/w/other")
        assert (moved.source, moved.directory) == ("/srv/w/sub", True)
        await events.until("created", "/srv/w/other/in")  # under its new name
        await box.run("mv /srv/w/other /srv/gone && touch /srv/gone/unseen")
        assert (await events.until("removed", "/srv/w/other")).directory
        await box.run("mv /srv/gone /srv/w/back")
        await events.until("created", "/srv/w/back/unseen")
        await box.run("rm -r /srv/w")
        await events.until("removed", "/srv/w")
        assert [event async for event in stream] == []  # and that was the last
    assert not [event.path for event in events.seen if "gone" in event.path]


async def test_new_directories_are_watched_without_a_gap(box):
    """Trees appear faster than anyone can watch them: each file is told."""
    await box.run("mkdir /srv/w")
    wanted = {f"/srv/w/{a}/{b}/{c}/f" for a in range(6) for b in range(6) for c in range(6)}
    async with aclosing(box.files.watch("/srv/w", recursive=True)) as stream:
        events = Events(stream)
        await events.until("ready")
        line = "for a in 0 1 2 3 4 5; do for b in 0 1 2 3 4 5; do mkdir -p $a/$b/0 $a/$b/1 $a/$b/2 "
        line += "$a/$b/3 $a/$b/4 $a/$b/5; touch $a/$b/0/f $a/$b/1/f $a/$b/2/f $a/$b/3/f $a/$b/4/f "
        line += "$a/$b/5/f; done; done; touch end"
        await box.run(line, cwd="/srv/w")
        await events.until("created", "/srv/w/end")
    told = {event.path for event in events.seen if event.kind == "created"}
    assert wanted <= told


async def test_file_that_is_replaced_is_still_watched(box):
    await box.files.write("/srv/one", "1")
    async with aclosing(box.files.watch("/srv/one")) as stream:
        events = Events(stream)
        await events.until("ready")
        await box.files.write("/srv/other", "not this")
        await box.files.write("/srv/one", "2")
        event = await anext(stream)
        assert event.path.endswith("/one")
        await box.run("echo 3 >> /srv/one")
        event = await events.until("modified")
        assert event.path.endswith("/one")


async def test_lost_events_are_said_and_the_watch_goes_on(box):
    """A reader that is too slow loses events, and is told so."""
    await box.run("mkdir /srv/w")
    async with aclosing(box.files.watch("/srv/w", recursive=True)) as stream:
        events = Events(stream)
        await events.until("ready")
        flood = """
import os
for n in range(150000):
    name = f"/srv/w/{n:0200}"
    open(name, "w")
    os.unlink(name)
"""
        await box.files.write("/root/flood.py", flood)
        await box.run("python3 /root/flood.py && mkdir -p /srv/w/late/er", timeout=300)
        assert (await events.until("overflow")).path == "/srv/w"
        await box.run("touch /srv/w/late/er/file")
        await events.until("created", "/srv/w/late/er/file")


async def test_watch_has_the_users_rights_and_says_what_it_cannot(box):
    await box.run("mkdir -m 700 /srv/mine; mkdir /srv/open; mkdir -m 700 /srv/open/shut")
    with pytest.raises(FileDenied):
        async for _ in box.files.watch("/srv/mine", user="nobody"):
            pass
    async with aclosing(box.files.watch("/srv/open", recursive=True, user="nobody")) as stream:
        events = Events(stream)
        await events.until("ready")
        await box.run("touch /srv/open/shut/secret /srv/open/end")
        await events.until("created", "/srv/open/end")
    assert not [event for event in events.seen if "secret" in event.path]


async def test_too_many_directories_are_a_clear_error(box):
    await box.run("mkdir /srv/w && cd /srv/w && seq 17000 | xargs mkdir", timeout=120)
    with pytest.raises(FileRefused) as caught:
        async for _ in box.files.watch("/srv/w", recursive=True):
            pass
    assert caught.value.fields["step"] == "watches"


async def test_watch_that_nobody_reads_any_more_ends_inside(box):
    await box.run("mkdir /srv/w")
    before = (await box.run("ls /proc | grep -c '^[0-9]'")).text
    for _ in range(5):
        async with aclosing(box.files.watch("/srv/w")) as stream:
            assert (await anext(stream)).kind == "ready"
    for _ in range(100):
        if (await box.run("ls /proc | grep -c '^[0-9]'")).text == before:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("helpers of ended watches are still there")


async def test_lost_connection_is_told_as_a_loss(layer_store):
    """The node is killed and comes back: the watch goes on, and says that events may be missing."""
    node = LiveNode(layer_store).start()
    try:
        async with node.client() as client:
            box = await client.sandboxes.create(detached=True)
            await box.run("mkdir /srv/w")
            async with aclosing(box.files.watch("/srv/w", recursive=True)) as stream:
                events = Events(stream)
                await events.until("ready")
                node.kill()
                node.start()
                await events.until("overflow", "/srv/w")
                await box.run("touch /srv/w/after")
                await events.until("created", "/srv/w/after")
            await box.destroy()
    finally:
        left = node.stop()
    assert not left
