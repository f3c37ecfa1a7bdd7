"""Conformance: what an instance had written at one moment, kept, looked at, and begun with."""

# ruff: noqa: D102, S101 - tests: their names say it, and asserting is their purpose

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skerry.backends.api import Backend, Instance, Pausable, Sweepable, View, Viewable, Viewer
from skerry.errors import SkerryError
from skerry.spec.layers import RootfsPlan
from skerry.testing.conformance.kit import Box, Conformance


def viewer_of(backend: Backend) -> Viewer:
    """The backend, as one that has views."""
    found: object = backend
    if not isinstance(found, Viewer) or not backend.capabilities.snapshot:
        pytest.skip("this backend has no views")
    return found


async def view_of(instance: Instance, name: str) -> View:
    """A new view of an instance."""
    found: object = instance
    assert isinstance(found, Viewable), "a Viewer makes Viewable instances"
    return await found.view(name)


async def content(viewer: Viewer, view: View, path: str) -> bytes | None:
    """What a view holds at a path."""
    async with viewer.open_view(view) as upper:
        try:
            with open(f"{upper.path}{path}", "rb") as file:  # noqa: ASYNC230
                return file.read()
        except FileNotFoundError:
            return None


async def put(box: Box, path: str, data: bytes) -> None:
    """Writes a file inside."""
    done = await box.helper("write", path, "644", "-", stdin=data)
    assert done.outcome.exit_code == 0, done


async def get(box: Box, path: str) -> bytes:
    """Reads a file inside."""
    return (await box.helper("read", path, "0", "-1")).stdout


class ViewConformance(Conformance):
    """Views of instances. That nothing is left is the fixture's to check."""

    @asynccontextmanager
    async def _made_from(
        self, backend: Backend, rootfs: RootfsPlan, view: View, **limits: Any
    ) -> AsyncIterator[Box]:
        async with self.boxed(backend, rootfs, view=view, **limits) as box:
            yield box

    async def test_view_outlives_its_instance_until_it_is_dropped(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        viewer = viewer_of(backend)
        async with self.boxed(backend, rootfs) as box:
            await put(box, "/root/f", b"before")
            view = await view_of(box.instance, "view-1")
            assert (await box.run("echo", "alive")).stdout == b"alive\n"
            await put(box, "/root/f", b"after")
        assert 0 <= view.frozen_seconds < 5
        assert view.layers == rootfs.layers
        assert await content(viewer, view, "/root/f") == b"before"
        async with viewer.open_view(view) as upper:
            path = upper.path
            assert os.path.isdir(path)
        await viewer.drop_view(view)
        await viewer.drop_view(view)
        assert not os.path.exists(path)
        with pytest.raises(SkerryError):
            await content(viewer, view, "/root/f")

    async def test_instances_begin_with_a_view_and_go_their_own_way(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        viewer = viewer_of(backend)
        async with self.boxed(backend, rootfs) as parent:
            await put(parent, "/root/f", b"one")
            view = await view_of(parent.instance, "view-2")
        async with (
            self._made_from(backend, rootfs, view) as left,
            self._made_from(backend, rootfs, view) as right,
        ):
            await viewer.drop_view(view)  # they have copies
            assert await get(left, "/root/f") == b"one"
            await put(left, "/root/f", b"left")
            await put(right, "/root/g", b"right")
            assert await get(right, "/root/f") == b"one"
            # A view of an instance that began with one, and an instance of that.
            second = await view_of(right.instance, "view-3")
            async with self._made_from(backend, rootfs, second) as again:
                assert await get(again, "/root/g") == b"right"
            async with viewer.open_view(second) as upper:
                assert os.stat(f"{upper.path}/root/g").st_uid == upper.uid_base
            await viewer.drop_view(second)

    async def test_restart_keeps_views_that_are_claimed_and_sweeps_the_others(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        viewer_of(backend)
        async with self.boxed(backend, rootfs) as box:
            await put(box, "/root/f", b"x")
            kept = await view_of(box.instance, "view-kept")
            lost = await view_of(box.instance, "view-lost")
        await backend.close(keep_instances=True)
        second = await self.restart(backend)
        try:
            viewer = viewer_of(second)
            viewer.claim_views((kept,))
            if isinstance(second, Sweepable):
                await second.sweep()
            assert await content(viewer, kept, "/root/f") == b"x"
            with pytest.raises(SkerryError):
                await content(viewer, lost, "/root/f")
            await viewer.drop_view(kept)
        finally:
            await second.close(keep_instances=False)

    async def test_paused_instance_is_viewed_and_stays_paused(
        self, backend: Backend, rootfs: RootfsPlan
    ) -> None:
        viewer = viewer_of(backend)
        async with self.boxed(backend, rootfs) as box:
            instance: object = box.instance
            if not isinstance(instance, Pausable):
                pytest.skip("this backend cannot pause")
            await put(box, "/root/f", b"x")
            await instance.pause()
            view = await view_of(box.instance, "view-paused")
            waiting = asyncio.create_task(box.run("echo", "alive"))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await instance.resume()
            assert (await waiting).stdout == b"alive\n"
            assert await content(viewer, view, "/root/f") == b"x"
            await viewer.drop_view(view)
