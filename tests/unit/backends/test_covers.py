"""A launcher that does not know all that is asked for is told from one that does."""

from __future__ import annotations

import pytest

from skerry.backends.api import CreateRequest, RootfsPlan
from skerry.backends.container.creation import _understood
from skerry.errors import Unavailable
from skerry.spec.device import DeviceNode

DONE = ("overlay=12", "readonly=3", "total=400")


def request(**covers: tuple[object, ...]) -> CreateRequest:
    return CreateRequest(
        instance_id="i1",
        rootfs=RootfsPlan(layers=()),
        hostname="box",
        cpu=1.0,
        memory_bytes=1 << 30,
        pids=64,
        nofile=64,
        shm_bytes=1 << 20,
        **covers,
    )


def test_a_launcher_that_left_paths_as_they_are_makes_no_sandbox() -> None:
    _understood(request(), DONE)
    _understood(request(readonly=("/a",), hidden=("/b",)), (*DONE, "firm=1", "cover=2"))
    for covers, done in (
        ({"readonly": ("/a",)}, DONE),
        ({"readonly": ("/a",)}, (*DONE, "cover=1")),
        ({"hidden": ("/a",)}, (*DONE, "firm=1")),
    ):
        with pytest.raises(Unavailable, match="older"):
            _understood(request(**covers), done)


def test_a_launcher_that_knows_no_cells_makes_no_function_container() -> None:
    _understood(request(cells=2), (*DONE, "seal=1"))
    with pytest.raises(Unavailable, match="older"):
        _understood(request(cells=2), DONE)


def test_a_launcher_that_left_devices_out_makes_no_sandbox() -> None:
    wanted = request(devices=(DeviceNode("gpu0", 195, 0),))
    _understood(wanted, (*DONE, "node=1"))
    with pytest.raises(Unavailable, match="older"):
        _understood(wanted, DONE)
