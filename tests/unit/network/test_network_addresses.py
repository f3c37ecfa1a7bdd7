"""Addresses that may be connected to, and those that may not in any disguise."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.network.addresses import never_reachable, not_public

PUBLIC = ["1.1.1.1", "151.101.0.223", "2606:4700::6810:1", "64:ff9b::101:101", "2002:101:101::1"]
PRIVATE = [
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.255.254",
    "198.18.0.1",
    "203.0.113.80",
    "192.0.2.1",
    "240.0.0.1",
    "::1",
    "fc00::1",
    "fd12:3456::1",
    "fec0::1",
    "2001:db8::1",
    "2001::1",
    "::ffff:10.0.0.1",
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "::10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::1",
    "2002:7f00:1::1",
    "2002:a00:1::1",
]
NEVER = [
    "0.0.0.0",
    "::",
    "169.254.169.254",
    "169.254.0.1",
    "fe80::1",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
    "255.255.255.255",
    "224.0.0.1",
    "ff02::1",
    "::ffff:169.254.169.254",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
]


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_may_be_connected_to(text: str) -> None:
    assert not_public(ip_address(text)) is None


@pytest.mark.parametrize("text", PRIVATE)
def test_private_addresses_are_not_public_and_an_operator_may_allow_them(text: str) -> None:
    assert not_public(ip_address(text))
    assert never_reachable(ip_address(text)) is None


@pytest.mark.parametrize("text", NEVER)
def test_metadata_and_its_neighbours_are_never_reachable(text: str) -> None:
    assert never_reachable(ip_address(text))
    assert not_public(ip_address(text))


@given(st.ip_addresses(v=4))
def test_wrapping_an_address_does_not_change_what_it_is(address: IPv4Address) -> None:
    wrapped = [
        IPv6Address(0xFFFF_0000_0000 | int(address)),
        IPv6Address(int(IPv6Address("64:ff9b::")) | int(address)),
    ]
    for other in wrapped:
        assert bool(not_public(other)) == bool(not_public(address))
        assert bool(never_reachable(other)) == bool(never_reachable(address))
