"""Callers that an HTTP listener accepts, by the names that they use for it and by the page that they are.

A browser lets any page send requests to any address. It names the origin of the page. A page can also let its
own host name resolve to the address of a listener (DNS rebinding); the browser then names that host.
"""

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

JSON_TYPE: Final = "application/json"
FORM_TYPE: Final = "multipart/form-data"

FORM_PATHS: Final = frozenset({"/v1/files"})
"""Paths whose bodies are forms. They go to the disk as they come, so that they take no memory."""

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/@\s]+)(:\d*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRules:
    """Hosts and origins that a listener accepts.

    Attributes:
        listens_on: The address it listens on.
        hosts: Further names by which clients may call it.
        origins: Origins of web pages that may call it.
        token: The token of operators.
        keys_required: Clients need an API key.
    """

    listens_on: str = "127.0.0.1"
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    token: str | None = field(default=None, repr=False)
    keys_required: bool = False

    def accepts_host(self, host: str) -> bool:
        """Return whether a client may call it by a value of the header Host.

        By an IP address no page can reach a listener on behalf of another name.
        """
        name = _name(host)
        if name is None:
            return False
        known = {each.lower() for each in ("localhost", self.listens_on, *self.hosts)}
        if name in known:
            return True
        if is_loopback(self.listens_on):
            return is_loopback(name)
        return not self.hosts or _is_address(name)

    def accepts_origin(self, origin: str) -> bool:
        """Return whether a page of an origin may call it."""
        return origin in self.origins

    def accepts_own_page(self, origin: str, host: str) -> bool:
        """Return whether an origin is that of a page of the listener itself, which was called as `host`.

        The scheme does not count: a proxy may speak TLS with the browser.
        """
        scheme, _, authority = origin.partition("://")
        own = scheme in ("http", "https") and authority.lower() == host.lower()
        return own and self.accepts_host(host)

    def accepts_operator(self, authorization: str) -> bool:
        """Return whether an operator may call it with a value of the header Authorization.

        Without a token, every caller on this machine is an operator, and no other one.
        """
        if self.token is None:
            return is_loopback(self.listens_on)
        scheme, _, token = authorization.strip().partition(" ")
        # A server may decode bytes that are no text to surrogates.
        given = token.strip().encode("utf-8", "surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(given, self.token.encode())


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    return address == "localhost" or (_is_address(address) and ip_address(address).is_loopback)


def is_type(content_type: str, expected: str) -> bool:
    """Return whether a content type says that a body is of a type, whatever its parameters."""
    return content_type.partition(";")[0].strip().lower() == expected


def _name(host: str) -> str | None:
    """Return the name in a value of Host, without its port; None if there is none."""
    found = _HOST.fullmatch(host)
    return None if found is None else found[1].strip("[]").rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
