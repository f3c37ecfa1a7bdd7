"""What the tests of layers share: a library in a temporary directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from image_uppers import layers  # noqa: F401 - a fixture of many
from store_terms import impatient

from skerry.errors import Unavailable
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.scratch import Spool
from skerry.images.store.store import DirectoryStore


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(str(tmp_path))
    yield made
    made.close()


@pytest.fixture(scope="session")
def tools() -> Tools:
    made = Tools()
    try:
        made.mkfs()
    except Unavailable as error:
        pytest.skip(error.message)
    return made


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """A store whose collector does not wait: nobody else is at it."""
    return DirectoryStore(str(tmp_path / "store"), leases=impatient)


@pytest.fixture
def library(store: DirectoryStore, tools: Tools, tmp_path: Path) -> ImageLibrary:
    return ImageLibrary(store, tools, str(tmp_path / "scratch"), clock=lambda: 1_700_000_000.0)


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: overlay marks, owners and device nodes are made")


@pytest.fixture
def files_of() -> Callable[[DirectoryStore], list[str]]:
    """Every file of a store that says something of layers, relative to its root."""

    def find(store: DirectoryStore) -> list[str]:
        found = []
        for top, _, names in os.walk(store.root):
            found += [os.path.relpath(os.path.join(top, name), store.root) for name in names]
        return sorted(name for name in found if not name.startswith(("version", "gc/", "leases/")))

    return find
