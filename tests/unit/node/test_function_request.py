"""What a function container is made from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from skerry.node.functions.making import request_of
from skerry.spec import limits
from skerry.spec.function_limits import PROCESSES_MAX


def test_processes_and_memory_of_a_container_are_bounded_as_a_whole() -> None:
    """A zygote is in no cell: without that, a module could take all of the host's."""
    composed: Any = SimpleNamespace(plan=None, config=SimpleNamespace(env=()))
    for cells in (1, 16):
        member = SimpleNamespace(name="n", marks=SimpleNamespace(cells=cells))
        request = request_of(cast("Any", member), composed, 1 << 30)
        assert PROCESSES_MAX < request.pids < limits.PIDS_MAX // 2
        assert request.memory_bytes == 1 << 30
