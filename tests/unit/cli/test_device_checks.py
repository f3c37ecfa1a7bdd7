"""`skerry doctor` on devices: which were found, by whom, and why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.backends.devices.listed import DevicesConfig, ListedDevice
from skerry.cli.app import Settings
from skerry.cli.device_checks import devices_check
from skerry.cli.node import node_config
from skerry.errors import InvalidRequest

FULL = ListedDevice(id="card0", nodes=("/dev/full:fakegpu0",), model="Fake", memory="8GiB")


def test_host_without_a_device_is_told_so_and_is_no_worse(tmp_path: Path) -> None:
    check = devices_check(None, str(tmp_path))
    assert check.status == "note"
    assert check.found == ("nvidia: none (its kernel driver is not loaded, or knows no GPU)")
    assert "refused" in check.consequence


def test_listed_device_is_told_with_its_provider(tmp_path: Path) -> None:
    check = devices_check(DevicesConfig(providers=(), listed=(FULL,)), str(tmp_path))
    assert (check.status, check.found) == ("ok", "listed: gpu card0 Fake 8 GiB")


def test_listed_device_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    gone = ListedDevice(id="card1", nodes=(f"{tmp_path}/none:gpu1",))
    check = devices_check(DevicesConfig(providers=(), listed=(FULL, gone)), str(tmp_path))
    assert check.status == "warning"
    assert "card1: [Errno 2]" in check.found
    assert "card0" in check.found


def test_devices_are_read_from_the_configuration_and_unknown_keys_refused() -> None:
    settings = Settings()
    listed = {"id": "card0", "nodes": ["/dev/full:fakegpu0"], "env": {"A": "b"}}
    config = node_config(settings, {"devices": {"providers": [], "listed": [listed]}}, {})
    assert config.devices.listed[0].env == {"A": "b"}
    for wrong in ({"lists": []}, {"listed": [listed | {"node": "x"}]}, {"listed": [{"id": "a"}]}):
        with pytest.raises(InvalidRequest, match=r"devices|node"):
            node_config(settings, {"devices": wrong}, {})
