"""Makes `fakes` importable, and keeps this process's environment out of the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKERRY_URL", raising=False)
    monkeypatch.delenv("SKERRY_TOKEN", raising=False)
