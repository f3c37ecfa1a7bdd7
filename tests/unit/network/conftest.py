"""Gateways that are closed after the test."""

from __future__ import annotations

import pytest
from proxy_stand import Stand


@pytest.fixture
async def make():
    stands = []

    def build(*entries: str, **keywords) -> Stand:
        stands.append(Stand(*entries, **keywords))
        return stands[-1]

    yield build
    for stand in stands:
        await stand.close()
