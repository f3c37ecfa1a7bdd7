"""Keeps this process's environment out of the tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKERRY_URL", raising=False)
    monkeypatch.delenv("SKERRY_TOKEN", raising=False)
