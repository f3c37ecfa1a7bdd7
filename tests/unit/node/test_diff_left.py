"""An archive of what was written, left by its client midway: closed at once, and not on the loop."""

from __future__ import annotations

import threading

from skerry.spec.sandbox import SandboxSpec

PIECE = b"x" * (256 * 1024)


class Endless:
    """An archive without end; tells who closed it, and whether the view was still there."""

    def __init__(self, views: set[str]) -> None:
        self.views = views
        self.closed_by: list[tuple[int, bool]] = []

    def __call__(self, upper, under="/"):
        del upper, under
        try:
            while True:
                yield PIECE
        finally:
            self.closed_by.append((threading.get_ident(), bool(self.views)))


async def test_archive_that_is_left_is_closed_in_a_thread_before_its_view_goes(
    stand, monkeypatch
) -> None:
    """The last close of a large file that was deleted may take long; it must hold up nobody."""
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        views: set[str] = set()
        taken = type(sandbox.snapshotable).snapshot

        def snapshot(self):
            return Viewed(taken(self), views)

        monkeypatch.setattr(type(sandbox.snapshotable), "snapshot", snapshot)
        endless = Endless(views)
        monkeypatch.setattr(stand.library, "diff_tar", endless)
        archive = node.files.diff_tar(sandbox, "/")
        assert await anext(archive) == PIECE
        await archive.aclose()
        [(thread, seen)] = endless.closed_by
        assert thread != threading.get_ident()
        assert seen
        assert not views


class Viewed:
    """A view that is known while it is there."""

    def __init__(self, view, views: set[str]) -> None:
        self.view, self.views = view, views

    async def __aenter__(self):
        self.views.add("one")
        return await self.view.__aenter__()

    async def __aexit__(self, *error):
        self.views.clear()
        return await self.view.__aexit__(*error)
