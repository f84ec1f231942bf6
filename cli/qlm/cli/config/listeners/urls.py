"""Addresses of HTTP listeners, as callers write them."""

from collections.abc import Mapping
from typing import Final

_LOOPBACK: Final[Mapping[str, str]] = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where callers on this machine reach a listener on all of its addresses."""


def http_url(host: str, port: int) -> str:
    """Return the address of a listener; one of IPv6 has brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def local_url(host: str, port: int) -> str:
    """Return the address of a listener for callers on this machine."""
    return http_url(_LOOPBACK.get(host, host), port)
