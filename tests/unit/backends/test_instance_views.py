"""A view of what an instance wrote, when the launcher is lost under it."""

from __future__ import annotations

import errno
import logging

import pytest

from skerry.backends.container.instance import ContainerInstance, Facts
from skerry.backends.container.parts import Parts, Places
from skerry.backends.container.slots import Slot
from skerry.backends.shared.cgroup import Counters, Layout, Limits
from skerry.errors import StorageFailed, Unavailable
from skerry.wire import plan, replies

LIMITS = Limits(256 << 20, 10, 1.0)


class World:
    """One instance; `lost` kinds of requests fail once each, as with a launcher that dies."""

    def __init__(self, root: str, monkeypatch) -> None:
        layout = Layout("v1", "/u", {"memory": "/m", "pids": "/p", "cpu": "/c"}, True)
        self.parts = Parts(Places("/s", "/r", "n"), layout, logging.getLogger("test"))
        self.parts.features = frozenset({"snapshot"})
        self.lost: set[type[plan.Request]] = set()
        self.asked: list[type[plan.Request]] = []
        monkeypatch.setattr(self.parts, "ask_raw", self.ask)
        monkeypatch.setattr(self.parts, "launcher_root", lambda: root)
        facts = Facts("i", 3, 9, 1, "boot", (), LIMITS, Counters())
        self.instance = ContainerInstance(self.parts, facts, Slot(3, self.parts.groups))
        self.instance.born(9, 1, ())

    async def ask(self, request: plan.Request) -> replies.Reply:
        self.asked.append(type(request))
        if type(request) in self.lost:
            self.lost.discard(type(request))
            raise Unavailable("the launcher was lost")
        return replies.Reply(1, None)


@pytest.fixture
async def world(tmp_path, monkeypatch):
    (tmp_path / "upper/i-snap1/u").mkdir(parents=True)
    return World(str(tmp_path), monkeypatch)


async def test_view_is_deleted_also_by_the_launcher_that_comes_next(world):
    world.lost.add(plan.UpperDrop)
    async with world.instance.snapshot():
        pass  # what was done with the view stays done
    assert world.asked.count(plan.UpperDrop) == 2


async def test_view_that_went_with_its_launcher_is_no_full_disk(world, monkeypatch):
    monkeypatch.setattr(world.parts, "launcher_root", lambda: "/proc/4194304/root")
    with pytest.raises(Unavailable):
        async with world.instance.snapshot():
            pytest.fail("there is nothing to look at")
    assert world.asked.count(plan.UpperDrop) == 1


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(errno.ENOENT, "gone", "/proc/7/root/upper/i-snap1/u"), Unavailable),
        (OSError(errno.EIO, "broken", "/proc/7/root/upper/i-snap1/u"), StorageFailed),
        (OSError(errno.ENOSPC, "full", "/store/blobs/x"), StorageFailed),
    ],
)
async def test_what_breaks_while_a_view_is_read_is_a_typed_error(world, error, kind):
    with pytest.raises(kind):
        async with world.instance.snapshot():
            raise error
    assert world.asked[-1] is plan.UpperDrop
