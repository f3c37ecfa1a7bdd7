"""The client of the launcher's socket, and what keeps a launcher running."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest
from fake_launcher import OK_FIELDS

from skerry.backends.shared import binaries
from skerry.backends.shared.launcher import LauncherFailed
from skerry.backends.shared.launcher_process import LauncherProcess
from skerry.errors import Overloaded, StorageFailed, Unavailable
from skerry.wire import plan, replies
from skerry.wire.fields import FieldBuilder
from skerry.wire.frames import LauncherFrame, Tag

LOG = logging.getLogger("test")


async def test_answers_reach_who_asked(launcher, fake):
    status, upper = await asyncio.gather(
        launcher.ask(plan.Status()), launcher.ask(plan.UpperOpen(upper="dir", path="/x"))
    )
    assert status.status().version == 1
    assert upper.upper().feature == ("quota", "snapshot")
    assert fake.asked[1][1].text(Tag.PATH) == "/x"


async def test_pages_of_a_long_status_are_put_together(launcher, fake, monkeypatch):
    def page(instance, offset):
        fields = FieldBuilder().u64(Tag.PID, 7).u64(Tag.VERSION, 1).text(Tag.INSTANCE, instance)
        return (fields.u64(Tag.OFFSET, offset) if offset else fields).payload()

    pages = [page("a", 5), page("b", 9), page("c", 0)]
    monkeypatch.setitem(OK_FIELDS, LauncherFrame.STATUS, lambda: pages.pop(0))
    assert (await launcher.status()).instance == ("a", "b", "c")
    assert [asked.u64(Tag.OFFSET) if Tag.OFFSET in asked else 0 for _, asked in fake.asked] == [
        0,
        5,
        9,
    ]


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, StorageFailed), (errno.EMFILE, Overloaded), (errno.EPERM, Unavailable)],
)
async def test_failures_name_step_and_whose_fault(launcher, fake, number, kind):
    fake.fail[LauncherFrame.FREEZE] = ("freeze", number)
    with pytest.raises(LauncherFailed) as failed:
        await launcher.ask(plan.Freeze("i"))
    error = failed.value.to_error()
    assert type(error) is kind
    assert error.fields["step"] == "freeze"


async def test_silence_is_unavailable_and_leaves_no_waiter(launcher, fake):
    fake.mute.add(LauncherFrame.FREEZE)
    with pytest.raises(Unavailable, match="did not answer FREEZE"):
        await launcher.ask(plan.Freeze("i"), timeout_s=0.01)
    assert not launcher._waiting


async def test_loss_fails_what_waits_and_what_comes(launcher, fake):
    fake.mute.add(LauncherFrame.FREEZE)
    waiting = asyncio.ensure_future(launcher.ask(plan.Freeze("i")))
    await fake.until_asked(1)
    fake.drop()
    with pytest.raises(Unavailable, match="lost during FREEZE"):
        await waiting
    with pytest.raises(Unavailable, match="was not sent"):
        await launcher.ask(plan.Status())
    assert launcher.lost.is_set()


async def test_events_are_told(launcher, fake, events):
    await launcher.ask(plan.Status())
    fake.exited("abc", 9)
    await launcher.ask(plan.Status())
    assert events == [replies.Exited(instance="abc", wait_status=9)]


async def test_nonsense_ends_the_connection(launcher, fake):
    await launcher.ask(plan.Status())
    fake._client.send(b"nonsense")
    async with asyncio.timeout(5):
        await launcher.lost.wait()


async def test_many_requests_at_once_all_arrive(launcher, fake):
    await asyncio.gather(*(launcher.ask(plan.Thaw(f"i{n}")) for n in range(500)))
    assert fake.count(LauncherFrame.THAW) == 500


def process(tmp_path, restored, argv=("/bin/false",)) -> LauncherProcess:
    async def restore(_launcher, status):
        restored.append(status.pid)

    return LauncherProcess(
        argv, str(tmp_path), restore=restore, on_exited=lambda _event: None, log=LOG
    )


async def test_running_launcher_is_found_and_restored_first(fake, tmp_path):
    restored = []
    keeper = process(tmp_path, restored)
    await keeper.open()
    assert restored == [keeper.pid]
    assert (await (await keeper.get()).ask(plan.Status())).status().pid == keeper.pid
    await keeper.close(stop=False)
    await keeper.close(stop=False)
    with pytest.raises(Unavailable, match="closed"):
        await keeper.get()


async def test_lost_launcher_is_awaited_not_asked_again(fake, tmp_path):
    restored = []
    keeper = process(tmp_path, restored)
    await keeper.open()
    first = await keeper.get()
    fake.drop()
    await first.lost.wait()
    second = await keeper.get()
    assert second is not first
    assert len(restored) == 2
    assert keeper.restarts == 1
    await keeper.close(stop=False)


async def test_launcher_that_does_not_start_says_why(tmp_path):
    (tmp_path / "spawn.log").write_text("start: mkdir: Read-only file system\n")
    with pytest.raises(Unavailable, match="Read-only file system"):
        await process(tmp_path, []).open()


async def test_missing_program_is_unavailable(tmp_path):
    with pytest.raises(Unavailable, match="does not start"):
        await process(tmp_path, [], ("/nonexistent/skerry-spawn",)).open()


async def test_launcher_that_stays_away_is_given_up(fake, tmp_path, monkeypatch):
    monkeypatch.setattr("skerry.backends.shared.launcher_process.RESTART_PAUSE_S", 0.0)
    keeper = process(tmp_path, [])
    await keeper.open()
    first = await keeper.get()
    fake.close()
    await first.lost.wait()
    with pytest.raises(Unavailable, match="in a row"):
        await keeper.get()
    await keeper.close(stop=False)


def test_missing_binary_says_what_to_run():
    with pytest.raises(Unavailable, match="make -C native"):
        binaries.find("skerry-nonexistent")


async def test_restore_that_fails_by_an_error_of_the_host_is_tried_again(
    fake, tmp_path, monkeypatch
):
    monkeypatch.setattr("skerry.backends.shared.launcher_process.RESTART_PAUSE_S", 0.0)
    keeper = process(tmp_path, [])
    await keeper.open()
    first = await keeper.get()
    errors = [OSError(28, "No space left on device")]
    restore = keeper._restore

    async def failing(launcher, status):
        if errors:
            raise errors.pop()
        await restore(launcher, status)

    keeper._restore = failing
    fake.drop()
    await first.lost.wait()
    async with asyncio.timeout(5):
        assert await keeper.get() is not first
    await keeper.close(stop=False)
