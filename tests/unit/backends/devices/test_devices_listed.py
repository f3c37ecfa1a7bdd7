"""The operator's list of devices, and how what providers found is put together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry.backends.devices.listed import DevicesConfig, Listed, ListedDevice
from skerry.backends.devices.provider import Found, take_stock
from skerry.errors import InvalidRequest
from skerry.spec.device import Device, DeviceNode


def test_listed_node_has_the_hosts_numbers_and_a_name_of_its_own_inside() -> None:
    listed = ListedDevice(
        id="card0", nodes=("/dev/full:gpu/card0", "/dev/zero:gpu/control"), model="Fake 1",
        memory="8GiB", env={"CARD": "0"},
    )  # fmt: skip
    (found,) = Listed((listed,)).probe().devices
    assert found.nodes == (DeviceNode("gpu/card0", 1, 7), DeviceNode("gpu/control", 1, 5))
    assert (found.memory_bytes, found.env, found.provider) == (8 << 30, {"CARD": "0"}, "listed")


def test_name_inside_is_that_below_dev_of_the_host() -> None:
    listed = ListedDevice(id="a", nodes=("/dev/net/tun",))
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("no /dev/net/tun")
    assert Listed((listed,)).probe().devices[0].nodes[0].name == "net/tun"


def test_device_that_is_missing_or_is_none_is_left_out_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    listed = (
        ListedDevice(id="gone", nodes=(f"{tmp_path}/none",)),
        ListedDevice(id="file", nodes=(f"{tmp_path}/file",)),
        ListedDevice(id="memory", nodes=("/dev/mem:gpu0",)),
        ListedDevice(id="good", nodes=("/dev/full:gpu0",)),
    )
    found = Listed(listed).probe()
    assert [one.id for one in found.devices] == ["good"]
    assert "gone: [Errno 2]" in found.reason
    assert "file is no character device" in found.reason


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (DevicesConfig(providers=("amd",)), "providers"),
        (DevicesConfig(listed=(ListedDevice(id="a", nodes=()),)), "nodes"),
        (DevicesConfig(listed=(ListedDevice(id="a", nodes=("full",)),)), "path"),
        (DevicesConfig(listed=(ListedDevice(id="a", nodes=("/dev/full:../x",)),)), "device node"),
        (DevicesConfig(listed=(ListedDevice(id="a", nodes=("/dev/full",)),)), "in use"),
        (DevicesConfig(listed=(ListedDevice(id="a", nodes=("/dev/x",), memory="x"),)), "size"),
        (DevicesConfig(listed=(ListedDevice(id="a", nodes=("/dev/x",)),) * 2), "twice"),
        (DevicesConfig(waiting_max=-1), "waiting_max"),
    ],
)
def test_list_that_makes_no_sense_is_refused(config: DevicesConfig, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word):
        config.check()


class Odd:
    name = "odd"

    def probe(self) -> Found:
        node = (DeviceNode("gpu0", 195, 0),)
        return Found(
            provider="odd",
            devices=(
                Device(id="a", provider="odd", nodes=node),
                Device(id="b", provider="odd", nodes=(DeviceNode("null", 195, 0),)),
                Device(id="c", provider="odd", nodes=node),
            ),
        )


def test_what_was_found_before_or_is_no_device_is_left_out() -> None:
    listed = Listed((ListedDevice(id="a", nodes=("/dev/full:gpu0",)),))
    stock = take_stock([listed, Odd()])
    assert [(one.id, one.provider) for one in stock.devices] == [("a", "listed"), ("c", "odd")]
    assert "found before" in stock.found[1].reason
    assert "null" in stock.found[1].reason


def test_list_comes_before_what_is_found() -> None:
    config = DevicesConfig(listed=(ListedDevice(id="a", nodes=("/dev/full:gpu0",)),)).check()
    assert [one.name for one in config.all_providers()] == ["listed", "nvidia"]
    assert [one.name for one in DevicesConfig(providers=()).check().all_providers()] == []
