"""A node's name in a store is one state directory's: a copy, or an old one, changes nothing there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from skerry.errors import StorageFailed
from skerry.images.objects.directory import DirectoryObjects
from skerry.trajectory.format.store import TRAJECTORIES, owner_key
from skerry.trajectory.journal.journal import Journal
from skerry.trajectory.shipping.contents import Contents
from skerry.trajectory.shipping.owner import Owner, Refused
from skerry.trajectory.shipping.shipper import HELD_S, Lost, Progress, Shipper

NODE = "aaaaa"


class Killed(BaseException):
    """The process ends here."""


class Host:
    """A state directory, of which each process has an owner of its own."""

    def __init__(self, root: Path, store: DirectoryObjects) -> None:
        root.mkdir(exist_ok=True)
        self.root, self.store, self.now = root, store, 0.0

    def starts(self, store=None) -> Owner:
        chosen = self.store if store is None else store
        path = str(self.root / "owner")
        return Owner(lambda: chosen, node=NODE, path=path, now=lambda: self.now)

    def shipper(self, owner: Owner) -> Shipper:
        return Shipper(
            lambda: self.store,
            node=NODE,
            journal=str(self.root / "journal"),
            contents=Contents(str(self.root / "blobs"), inline_bytes=16, bytes_max=1 << 20),
            progress=str(self.root / "shipped"),
            owner=owner,
        )

    def writes(self, text: str) -> int:
        """Makes a segment with one record; returns where it ends."""
        journal = Journal.open(str(self.root / "journal"), now_ns=lambda: 1, segment_bytes=1 << 16)
        journal.append("a", "kind", {"text": text})
        _, end = journal.mark()
        journal.close()
        return end

    def copied(self, root: Path) -> Host:
        shutil.copytree(self.root, root)
        return Host(root, self.store)


@pytest.fixture
def host(tmp_path) -> Host:
    return Host(tmp_path / "first", DirectoryObjects(str(tmp_path / "store")))


def everything(store: DirectoryObjects) -> dict[str, bytes]:
    return {key: store.read(key, 0, 1 << 20) for key, _ in store.list(TRAJECTORIES)}


def test_name_stays_over_restarts_and_is_nobody_elses(host, tmp_path):
    for _ in range(3):
        host.starts().hold()
    stranger = Host(tmp_path / "second", host.store)  # by chance of the same name
    with pytest.raises(Refused, match="was this one copied"):
        stranger.starts().hold()
    host.starts().hold()


def test_copy_that_starts_first_has_the_name_and_the_other_notices(host, tmp_path):
    running = host.starts()
    running.hold()
    copy = host.copied(tmp_path / "copy")
    copy.starts().hold()
    with pytest.raises(Refused):
        running.hold()
    with pytest.raises(Refused):
        host.starts().hold()
    copy.starts().hold()


def test_state_that_was_brought_back_from_a_backup_is_refused(host, tmp_path):
    host.starts().hold()
    backup = host.copied(tmp_path / "backup")
    host.starts().hold()
    with pytest.raises(Refused):
        backup.starts().hold()


def test_whoever_is_refused_overwrites_and_removes_nothing(host, tmp_path):
    copy = host.copied(tmp_path / "copy")
    end, other_end = host.writes("mine"), copy.writes("theirs, which is longer")
    shipper = host.shipper(host.starts())
    shipper.ship_tail(1, 0, end, [])
    refused = copy.shipper(copy.starts())
    before = everything(host.store)
    progress = Progress(2, (Lost(2, 2, 1, "given up"),))
    for work in (
        lambda: refused.ship_tail(1, 0, other_end, []),
        lambda: refused.ship(1, other_end, []),
        lambda: refused.tell_lost(progress),
        lambda: refused.prune(0.0),
    ):
        with pytest.raises(Refused):
            work()
    assert everything(host.store) == before
    shipper.ship(1, end, [])
    assert any(key.endswith(".idx") for key in everything(host.store))


def test_pieces_of_an_open_segment_ask_now_and_then_and_segments_always(host, tmp_path):
    end = host.writes("mine")
    shipper = host.shipper(host.starts())
    shipper.ship_tail(1, 0, end, [])
    host.copied(tmp_path / "copy").starts().hold()
    shipper.ship_tail(1, 0, end, [])
    with pytest.raises(Refused):
        shipper.ship(1, end, [])
    host.now += HELD_S + 1
    with pytest.raises(Refused):
        shipper.ship_tail(1, 0, end, [])


@pytest.mark.parametrize("changes", range(3))
@pytest.mark.parametrize("after", [False, True])
def test_start_that_is_cut_off_anywhere_loses_no_name(host, monkeypatch, changes, after):
    host.starts().hold()
    left = [changes]

    def cut(real):
        def call(*arguments, **more):
            left[0] -= 1
            if left[0] < 0 and not after:
                raise Killed
            done = real(*arguments, **more)
            if left[0] < 0:
                raise Killed
            return done

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Owner, "_write", cut(Owner._write))
        patch.setattr(host.store, "put_bytes", cut(host.store.put_bytes))
        with pytest.raises(Killed):
            host.starts().hold()
    host.starts().hold()
    host.starts().hold()


def test_store_that_is_away_or_was_emptied_costs_no_name(host):
    class Away:
        def __getattr__(self, name):
            raise StorageFailed("away")

    with pytest.raises(StorageFailed, match="away"):
        host.starts(Away()).hold()
    running = host.starts()
    running.hold()
    host.store.delete(owner_key(NODE))
    running.hold()
    host.starts().hold()
