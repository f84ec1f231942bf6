"""One TLS context for all clients of httpx in a process of tests.

Each client reads some 140 root certificates anew, which takes 25 ms of the processor, and `httpx.get` makes a
client per call: a loop that waited for a server held half a core. Tests speak plain HTTP on loopback.
"""

import functools
import os
import ssl
from collections.abc import Callable
from typing import Any, Final

from httpx import create_ssl_context
from httpx._transports import default

VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Name other certificates; a test may set them."""


def share_context() -> None:
    """Let clients that name no certificates share a context; others get one of their own."""
    # By its name in the module, which does not export what it uses.
    vars(default)["create_ssl_context"] = _sharing(create_ssl_context)


def _sharing(make: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    shared = functools.cache(lambda *_: make())

    def context(
        verify: ssl.SSLContext | str | bool = True, cert: Any = None, trust_env: bool = True
    ) -> ssl.SSLContext:
        if verify is True and cert is None and trust_env:
            return shared(*map(os.environ.get, VARIABLES))
        return make(verify, cert, trust_env)

    return context
