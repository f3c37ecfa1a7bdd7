"""What a task runs in: an image by name, or a Dockerfile built by our builder, once for all who ask."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from harbor.environments.base import SandboxBuildFailedError, ServiceOperationsUnsupportedError
from harbor.environments.definition import COMPOSE_FILE_NAME, DOCKERFILE_NAME

from skerry.errors import Fault, InvalidRequest, NotFound, SkerryError
from skerry.sdk.bases import ImageSources
from skerry.sdk.client import AsyncClient
from skerry.sdk.transfer import pack_tree
from skerry.spec.layers import LayerManifest, composed_config

BELOW = "workspace/harbor"
# Of this process: who builds what now, and what was built although it was there (--force-build).
_BUILDING: weakref.WeakValueDictionary[tuple[int, str], asyncio.Lock] = (
    weakref.WeakValueDictionary()
)
_FORCED: set[str] = set()


class Image(NamedTuple):
    """What a sandbox is made of, pinned by digest, and where its commands run if nobody says."""

    image: str
    layers: tuple[str, ...]
    workdir: str


class Build(NamedTuple):
    """What a Dockerfile is built with; `forced`: again, though nothing has changed."""

    network: Sequence[str]
    cpu: float
    memory: str | int
    timeout_s: float
    forced: bool


class Images:
    """Finds and makes what tasks run in, on one node."""

    def __init__(
        self, client: AsyncClient, sources: ImageSources, log: Callable[[str], None]
    ) -> None:
        self._client = client
        self._sources = sources
        self._log = log

    async def named(self, name: str) -> Image:
        """Returns an image by its name; SandboxBuildFailedError if it cannot be had."""
        async with _alone(name):
            with making(f"docker_image {name!r}"):
                base = await self._client.images.find(name, self._sources, on_log=self._log)
        return _image(base, None)

    async def built(self, directory: Path, name: str, build: Build) -> Image:
        """Returns what a directory's Dockerfile says; SandboxBuildFailedError if it fails."""
        layer = f"{BELOW}/{name}"
        async with _alone(layer):
            with making(str(directory / DOCKERFILE_NAME)):
                made = await self._client.images.build_recipe(
                    layer,
                    _text(directory / DOCKERFILE_NAME),
                    context=directory,
                    network=build.network,
                    cpu=build.cpu,
                    memory=build.memory,
                    timeout=build.timeout_s,
                    cache=not build.forced or layer in _FORCED,
                    sources=self._sources,
                    on_log=self._log,
                )
                base = await self._client.images.inspect(made.recipe["base"])
            _FORCED.add(layer)
        return _image(base, made)

    async def mounted(self, source: Path, target: str) -> str:
        """Returns a layer with a local file or directory at `target`."""
        with tempfile.TemporaryDirectory() as place:
            root, prefix = source, target
            if not source.is_dir():
                prefix, _, alone = target.rstrip("/").rpartition("/")
                root = Path(place)
                await asyncio.to_thread(shutil.copy2, source, root / alone)
            digest = hashlib.sha256()
            async for piece in pack_tree(root, prefix=prefix or "/"):
                digest.update(piece)
            name = f"{BELOW}/mounts/{digest.hexdigest()[:40]}"  # a name, not a tag: several go together
            async with _alone(name):
                try:
                    made = await self._client.images.inspect(name)
                except NotFound:
                    made = await self._client.images.import_directory(
                        name, root, prefix=prefix or "/"
                    )
        return made.pinned


def reject_compose(directory: Path) -> None:
    """Raises ServiceOperationsUnsupportedError for a task of several containers."""
    if (directory / COMPOSE_FILE_NAME).exists():
        raise ServiceOperationsUnsupportedError(
            f"{directory / COMPOSE_FILE_NAME}: a Skerry sandbox is one container, Docker Compose needs "
            "several. Write a Dockerfile or docker_image, or run the task in an environment with compose"
        )


def layer_name(task: str, content: str) -> str:
    """Returns what a task's image is called below BELOW; its tag stands for its content."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", task.lower()).strip("-._")[:100] or "task"
    return f"{plain}:{content[:32]}"


def _alone(name: str) -> asyncio.Lock:
    """Returns a lock that all in this event loop who want the same image share."""
    key = (id(asyncio.get_running_loop()), name)
    lock = _BUILDING.get(key)
    if lock is None:
        lock = _BUILDING[key] = asyncio.Lock()
    return lock


@contextlib.contextmanager
def making(what: str) -> Iterator[None]:
    """What fails in the block by the fault of a task or a job is raised as SandboxBuildFailedError."""
    try:
        yield
    except SkerryError as error:
        if error.fault in (Fault.PLATFORM, Fault.BUG):
            raise
        raise SandboxBuildFailedError(f"{what}: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error


def _image(base: LayerManifest, above: LayerManifest | None) -> Image:
    layers = base.layers() if above is None else (*base.layers(), *above.layers())
    # As in Docker: not the home of the image's user.
    workdir = composed_config(layers).workdir or "/"
    return Image(base.pinned, () if above is None else (above.pinned,), workdir)
