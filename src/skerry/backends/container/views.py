"""Views: read-only snapshots of uppers that outlive their instances (see the seam)."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skerry.backends.api import Upper, View
from skerry.backends.container.parts import Parts
from skerry.backends.shared.launcher import LauncherFailed
from skerry.errors import SkerryError, StorageFailed, Unavailable
from skerry.spec.layers import LayerFile
from skerry.wire import plan

TRIES = 3


@asynccontextmanager
async def opened(parts: Parts, view: View) -> AsyncIterator[Upper]:
    """Gives the directories of a view, its layers mounted; Unavailable if it is lost."""
    await parts.layers.acquire(view.layers)
    try:
        await parts.ready()
        yield upper_at(parts, view.name, view.layers, view.uid_base, view.frozen_seconds)
    finally:
        parts.layers.release(tuple(layer.id for layer in view.layers))


def upper_at(
    parts: Parts, name: str, layers: tuple[LayerFile, ...], uid_base: int, frozen: float
) -> Upper:
    """Returns where an upper and its layers are; Unavailable or StorageFailed if it is not there."""
    root = parts.launcher_root()
    path = f"{root}/upper/{name}/u"
    try:
        os.stat(path)
    except OSError as error:
        raise unreadable(name, error) from error
    lowers = tuple(f"{root}/layers/{layer.id}" for layer in reversed(layers))
    return Upper(path, uid_base, lowers, frozen)


def unreadable(name: str, error: OSError) -> SkerryError:
    """Returns what it means that a view cannot be read: it is seen through the launcher."""
    if error.errno == errno.ENOENT and str(error.filename).startswith("/proc/"):
        return Unavailable(f"the launcher was lost under the view {name}")
    return StorageFailed(f"the view {name} cannot be read: {error}")


async def drop(parts: Parts, name: str) -> None:
    """Deletes it, also by a launcher that comes after the one that was asked first."""
    for tries in range(TRIES):
        try:
            await parts.ask_raw(plan.UpperDrop(name))
            return
        except LauncherFailed as error:
            if error.errno == errno.ENOENT:
                return
            if not isinstance(error.to_error(), Unavailable) or tries == TRIES - 1:
                raise error.to_error() from error
        except Unavailable:
            if tries == TRIES - 1:
                raise


def drop_soon(parts: Parts, name: str) -> None:
    """Deletes it in the background; a failure is logged, and swept by the next start."""
    parts.track(asyncio.get_running_loop().create_task(drop(parts, name)))
