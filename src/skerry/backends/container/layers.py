"""Layers mounted in the launcher, once a node however many sandboxes use them (decision 5)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import time

from skerry.backends.container.slots import Ask
from skerry.backends.shared.launcher import LauncherFailed
from skerry.errors import LayerDamaged, Overloaded, SkerryError, Unavailable
from skerry.spec.layers import LayerFile
from skerry.wire import plan

UNUSED_S = 60.0
VERIFIED = "-v"  # how ids of layers end whose data comes through /blobs
JANITOR_PAUSE_S = 5.0
ROOM = 16  # layers that go at once when the launcher's table is full
RETRY_S = 5.0
_BROKEN = {
    errno.EINVAL,
    errno.EUCLEAN,
    errno.EBADMSG,
    errno.ENODATA,
    errno.ENOTBLK,
    errno.EOPNOTSUPP,
}


# The launcher is not to see this place; it was started with other ones.
_HIDDEN = errno.EACCES


def _is_full(error: LauncherFailed) -> bool:
    """Says whether the launcher has as many layers mounted as it can, not whether a disk is full."""
    return error.step == "layer" and error.errno == errno.ENOSPC


def _told(layer: LayerFile, error: LauncherFailed) -> SkerryError:
    blobs = layer.path if layer.device is None else f"{layer.path} with {layer.device}"
    if error.errno == errno.ENOENT:
        text = f"layer {layer.digest}: one of its blobs is gone: {blobs}"
        return LayerDamaged(text, digest=layer.digest)
    if error.errno in _BROKEN:
        text = f"layer {layer.digest}: {blobs} is no usable EROFS image: {error}"
        return LayerDamaged(text, digest=layer.digest)
    if error.errno == _HIDDEN:
        text = (
            f"{error}: the running launcher was started for other places. It ends with the last "
            "sandbox when the node stops, and is started for these by the next node"
        )
        return Unavailable(text, digest=layer.digest)
    return error.to_error()


class _Mount:
    """Invariant: users > 0, or `since` says when the last one went."""

    def __init__(self) -> None:
        self.users = 0
        self.since = time.monotonic()
        self.lock = asyncio.Lock()
        self.mounted = False


class LayerMounts:
    """Counts the users of each layer; unmounts one that had none for a minute."""

    def __init__(self, ask: Ask, log: logging.Logger) -> None:
        self._ask, self._log = ask, log
        self._mounts: dict[str, _Mount] = {}
        self._closing = asyncio.Event()

    def __len__(self) -> int:
        return sum(mount.mounted for mount in self._mounts.values())

    def found(self, ids: tuple[str, ...]) -> None:
        """Takes note of what a running launcher has mounted; what is not there is mounted again."""
        for mount in self._mounts.values():
            mount.mounted = False
        for layer in ids:
            self._mounts.setdefault(layer, _Mount()).mounted = True

    def lost_session(self) -> None:
        """The launcher let go of layers that read from an earlier session: they are mounted anew."""
        for layer, mount in self._mounts.items():
            if layer.endswith(VERIFIED):
                mount.mounted = False

    async def acquire(self, layers: tuple[LayerFile, ...]) -> None:
        """Mounts what is not mounted and counts one user more of each.

        Where there is no room for more layers, those that nobody uses make some. Raises Overloaded
        if there are none, LayerDamaged for blobs that are no layer or gone, else what the launcher's
        failure is.
        """
        taken: list[LayerFile] = []
        try:
            for layer in layers:
                mount = self._mounts.setdefault(layer.id, _Mount())
                mount.users += 1
                taken.append(layer)
                async with mount.lock:
                    if not mount.mounted:
                        await self._mount(layer)
                        mount.mounted = True
        except BaseException:
            self.release(tuple(layer.id for layer in taken))
            raise

    async def _mount(self, layer: LayerFile) -> None:
        request = plan.LayerMount(layer=layer.id, path=layer.path, device=layer.device)
        while True:
            try:
                await self._ask(request)
            except LauncherFailed as error:
                if not _is_full(error):
                    raise _told(layer, error) from error
                if not await self._make_room():
                    raise Overloaded(
                        f"{error}, all for live sandboxes: the node has no room for more different "
                        "layers at once; end some, or collapse layers that go together",
                        limit="layers_mounted",
                        retry_after_s=RETRY_S,
                    ) from error
            else:
                return

    async def _make_room(self) -> bool:
        """Unmounts layers without users, those first that had none for longest; False: none went."""
        unused = [
            (mount.since, layer)
            for layer, mount in self._mounts.items()
            if mount.mounted and not mount.users and not mount.lock.locked()
        ]
        gone = 0
        for _, layer in sorted(unused):
            mount = self._mounts.get(layer)
            # Another may have come for it meanwhile.
            if mount is not None and not mount.users and not mount.lock.locked():
                gone += await self._unmount(layer, mount)
            if gone == ROOM:
                break
        return gone > 0

    def release(self, ids: tuple[str, ...]) -> None:
        """Counts one user less of each."""
        for layer in ids:
            mount = self._mounts.get(layer)
            if mount is not None and mount.users:
                mount.users -= 1
                mount.since = time.monotonic()

    async def unmount_unused(self, older_than_s: float = UNUSED_S) -> None:
        """Unmounts layers without users for that long."""
        limit = time.monotonic() - older_than_s
        for layer, mount in list(self._mounts.items()):
            if not mount.users and mount.since <= limit and not mount.lock.locked():
                await self._unmount(layer, mount)

    async def _unmount(self, layer: str, mount: _Mount) -> bool:
        """Unmounts one layer; returns whether it is gone. Who comes for it meanwhile mounts it again."""
        async with mount.lock:
            try:
                await self._ask(plan.LayerUnmount(layer))
            except (LauncherFailed, SkerryError) as error:
                self._log.info("layer %s stays mounted: %s", layer, error)
                mount.since = time.monotonic()
                return False
            mount.mounted = False
        if not mount.users:
            self._mounts.pop(layer, None)
        return True

    async def keep_tidy(self) -> None:
        """Unmounts unused layers until `close`."""
        while not self._closing.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(JANITOR_PAUSE_S):
                    await self._closing.wait()
            if not self._closing.is_set():
                await self.unmount_unused()

    async def close(self) -> None:
        """Ends `keep_tidy`; what is mounted stays."""
        self._closing.set()
