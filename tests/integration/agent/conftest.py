"""The real `skerry-init`, release and sanitizer build, driven over its socket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_agent import NATIVE, Client
from native_sandbox import Sandbox

from native_build import build


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
