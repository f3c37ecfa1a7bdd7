"""A fake launcher and a client of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_launcher import FakeLauncher

from skerry.backends.shared.launcher import Launcher


@pytest.fixture
async def fake(tmp_path):
    made = FakeLauncher(str(tmp_path / "spawn.sock"))
    yield made
    made.close()


@pytest.fixture
async def events():
    return []


@pytest.fixture
async def launcher(fake, events):
    made = await Launcher.connect(fake.path, events.append)
    yield made
    made.close()
