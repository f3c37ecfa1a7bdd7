"""The real launcher, driven over its socket; a small program stands in for the guest agent."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from native_launcher import Launcher, build_programs, missing


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in and the layer image; skips where the machine cannot."""
    if reason := missing():
        pytest.skip(reason)
    at = tmp_path_factory.mktemp("programs")
    build_programs(at)
    return at


@pytest.fixture
def make(programs: Path) -> Iterator[Callable[..., Launcher]]:
    """Makes launchers; a short directory, for socket paths are short."""
    with contextlib.ExitStack() as stack:

        def build(**options: object) -> Launcher:
            base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sk")))
            launcher = Launcher(programs, base, **options)  # type: ignore[arg-type]
            stack.callback(launcher.clear)
            return launcher

        yield build


@pytest.fixture
def launcher(make: Callable[..., Launcher]) -> Launcher:
    found = make()
    found.begin()
    found.prepare(0, 1)
    return found
