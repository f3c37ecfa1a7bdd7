"""SWE-ReX's own tests, unchanged, through its own client.

They come from its source archive, which lacks their conftest: what that holds is here.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path
from typing import NamedTuple

import pytest
from serving import TOKEN, server
from swerex.runtime.abstract import (
    BashAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
)
from swerex.runtime.remote import RemoteRuntime

RELEASE = "swe-rex==1.4.0"
ARCHIVE = "swe_rex-1.4.0"
SHA256 = "14f8a24c49a63f9e251340b1109ac75a4aacbaece410f8599209de9bfca843c0"
PLACE = tempfile.TemporaryDirectory()  # of their sources, as long as this module lives
CACHE = Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry"), "interop", "archives")


class RemoteServer(NamedTuple):
    """As its tests want it: where it is and how one gets in."""

    port: int
    headers: dict[str, str]


class Action(BashAction):
    timeout: float | None = 5


class ShortCommand(Command):
    timeout: float | None = 5


def archive() -> Path:
    """Returns the release's source archive, fetched once and checked each time."""
    file = CACHE / f"{ARCHIVE}.tar.gz"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as place:
            argv = [sys.executable, "-m", "pip", "download", "-q", "--no-input", "--no-deps"]
            argv += ["--no-binary", ":all:", "-d", place, RELEASE]
            subprocess.run(argv, check=True, timeout=300)
            (Path(place) / file.name).replace(file)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
    return file


def its_tests(*names: str) -> dict[str, object]:
    """Returns the tests of these files: a package `tests` whose conftest is what stands below."""
    with tarfile.open(archive()) as tar:
        tar.extractall(PLACE.name, filter="data")
    package = types.ModuleType("tests")
    package.__path__ = [f"{PLACE.name}/{ARCHIVE}/tests"]
    conftest = types.ModuleType("tests.conftest")
    conftest._Action, conftest._Command = Action, ShortCommand
    conftest.RemoteServer, conftest.TEST_API_KEY = RemoteServer, TOKEN
    sys.modules |= {"tests": package, "tests.conftest": conftest}
    found: dict[str, object] = {}
    for name in names:
        pytest.register_assert_rewrite(f"tests.{name}")
        module = importlib.import_module(f"tests.{name}")
        tests = {key: value for key, value in vars(module).items() if key.startswith("test_")}
        assert tests
        assert not tests.keys() & found.keys()
        found |= tests
    return found


@pytest.fixture(scope="session")
def remote_server():
    with server() as told:
        yield RemoteServer(told["port"], {"X-API-Key": TOKEN})


@pytest.fixture
async def remote_runtime(remote_server):
    runtime = RemoteRuntime(port=remote_server.port, auth_token=TOKEN, timeout=10)
    yield runtime
    await runtime.close()


@pytest.fixture
async def runtime_with_default_session(remote_runtime):
    await remote_runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())


globals().update(its_tests("test_execution", "test_server", "test_remote_deployment"))
