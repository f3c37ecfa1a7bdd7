"""The real `skerry-init`, release and sanitizer build, driven over its socket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from function_rig import image_build
from native_agent import NATIVE, Client
from native_sandbox import Sandbox

from native_build import build
from native_launcher import build_programs, missing


@pytest.fixture(scope="module", params=["release", "san"])
def binary(request: pytest.FixtureRequest) -> Path:
    target = f"build/{request.param}/skerry-init"
    build(target)
    return NATIVE / target


@pytest.fixture(scope="module")
def sandbox(binary: Path) -> Iterator[Sandbox]:
    with tempfile.TemporaryDirectory(prefix="skerry-test-", dir="/run") as run:
        box = Sandbox(binary, Path(run))
        yield box
        box.stop()


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[Client]:
    with_agent = sandbox.connect()
    yield with_agent
    with_agent.close()


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the image of function containers; skips where the machine cannot."""
    if reason := missing():
        pytest.skip(reason)
    at = tmp_path_factory.mktemp("function")
    build_programs(at)
    image_build(at)
    return at
