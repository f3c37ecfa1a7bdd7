"""Which addresses may be connected to. Pure.

A name is worth nothing if its owner may point it anywhere: at the node, at the network that the
node is in, at the metadata service of a cloud.
"""

from __future__ import annotations

import ipaddress
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Reserved, and not known to every version of `ipaddress`.
_RESERVED = tuple(
    map(
        ipaddress.ip_network,
        (
            "192.88.99.0/24",
            "64:ff9b:1::/48",
            "2001:10::/28",
            "2001:20::/28",
            "3fff::/20",
            "5f00::/16",
        ),
    )
)
_METADATA = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "fd00:ec2::254", "192.0.0.192", "168.63.129.16"))
)


def unwrapped(address: Address) -> Address:
    """Returns the IPv4 address that an IPv6 address only wraps, else the address."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        compatible = int(address) >> 32 == 0 and int(address) > 1
        if address in _NAT64 or compatible:
            return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def never_reachable(address: Address) -> str | None:
    """Returns why nobody may connect there, whatever the operator allows; None if one may."""
    address = unwrapped(address)
    if address in _METADATA:
        return "a metadata address"
    if address.is_link_local:
        return "a link-local address, where metadata services are"
    if address.is_unspecified or address.is_multicast:
        return "no address of one machine"
    if int(address) == 0xFFFF_FFFF and address.version == 4:
        return "no address of one machine"
    return None


def not_public(address: Address) -> str | None:
    """Returns why the address is none of the public internet; None if it is one."""
    if reason := never_reachable(address):
        return reason
    address = unwrapped(address)
    if address.is_loopback:
        return "a loopback address"
    if isinstance(address, ipaddress.IPv6Address) and (
        address.teredo is not None or address.is_site_local
    ):
        return "a private address"
    if not address.is_global or any(address in network for network in _RESERVED):
        return "a private or reserved address"
    return None
