"""Addresses that may be connected to: public ones, and those that the configuration allows."""

import socket
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_WITH_IPV4: Final = (
    IPv6Network("64:ff9b::/96"),  # NAT64
    IPv6Network("::ffff:0:0:0/96"),  # SIIT
    IPv6Network("::/96"),  # IPv4-compatible
)
"""Networks whose addresses end with one of IPv4 that packets to them may reach."""

_UNICAST: Final = IPv6Network("2000::/3")
"""The only public addresses of IPv6 so far: https://www.iana.org/assignments/ipv6-address-space"""

_NOT_PUBLIC: Final[Sequence[Network]] = (
    IPv4Network("192.0.0.0/24"),  # of protocols
    IPv4Network("168.63.129.16/32"),  # of a host of Azure, for its virtual machines alone
    IPv6Network("3fff::/20"),  # of documentation
)
"""Networks which `is_global` of some versions of Python takes for public."""


class AddressRefusedError(OSError):
    """An address that may not be connected to."""


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Return whether an address, and those that it stands for, may be connected to."""
    return all(any(each in network for network in networks) or _is_public(each) for each in _meant(address))


def guarded_socket(networks: Sequence[Network], setting: str) -> Callable[[tuple[Any, ...]], socket.socket]:
    """Return what makes the socket of each connection: of the address that is connected to, or none.

    Args:
        networks: Networks that are allowed although they are not public.
        setting: Their name in the configuration, for the error.
    """

    def make(info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, destination = info
        address = ip_address(str(destination[0]).partition("%")[0])
        if not is_allowed(address, networks):
            raise AddressRefusedError(f"{address} is not public, and not in {setting}")
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    return make


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _UNICAST:
        return False
    special = address.is_multicast or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not special


def _meant(address: Address) -> Iterator[Address]:
    """Return an address, or the ones of IPv4 in it, which a packet to it reaches in the end."""
    if isinstance(address, IPv4Address):
        yield address
    elif address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif not (address.is_loopback or address.is_unspecified) and any(address in each for each in _WITH_IPV4):
        yield IPv4Address(int(address) & 0xFFFF_FFFF)
    elif address.sixtofour is not None:
        yield address.sixtofour
    elif address.teredo is not None:
        yield from address.teredo
    else:
        yield address
