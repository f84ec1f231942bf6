"""Methods and targets of requests without a body."""

import random
from collections.abc import Sequence
from typing import Final

_METHODS: Final = (b"GET", b"GET", b"GET", b"GET", b"HEAD", b"DELETE", b"PUT", b"PATCH", b"OPTIONS", b"TRACE",
                   b"PROPFIND", b"M-SEARCH", b"POST")  # fmt: skip
_PATHS: Final = (
    "/v1/models", "/v1/models/mistral-7b", "/v1/models/{odd}", "/v1/requests/{id}", "/v1/requests/{odd}",
    "/v1/requests/{id}/events", "/v1/requests/{odd}/events", "/v1/requests/", "/healthz", "/healthz/",
    "/readyz",
    "/metrics", "/admin/v1/queues", "/admin/v1/groups", "/admin/v1/requests", "/admin/v1/requests/{id}",
    "/admin/v1/requests/{odd}", "/admin/v1/plan", "/admin/v1/forecast", "/admin/v1/history",
    "/admin/v1/controller", "/admin/v1/store",
    "/admin/v1/listeners", "/admin/v1/instances", "/admin/v1/instances/{odd}/drain", "/admin/v1/dead",
    "/admin/v1/dead/{odd}", "/admin/v1/dead/{odd}/retry", "/v1/responses", "/v1/embeddings", "/v1", "/", "//",
    "/v1/../admin/v1/queues", "/v1/completions", "/{odd}", "/docs", "/favicon.ico",
)  # fmt: skip
"""Paths; none drains an instance that exists or cancels a request of the well-behaved client."""

_ODD: Final = (
    "", "%00", "%ff", "%e2%82", "%", "%zz", "..", "%2e%2e%2f", "%0d%0ax:%20y", "a" * 3000, "%F0%9F%98%80",
    "'", "*",
    "[", "]", "@", ":", "{0}", "%5B::1%5D", "nil", "-1", "a%2Fb", "a/b", "a;b", "a%3Fb", "%C0%AF", "~",
)  # fmt: skip
_QUERIES: Final = (
    "", "", "", "?", "?offset={odd}", "?offset=1&offset=2", "?include_usage={odd}", "?limit={odd}",
    "?limit=1&limit=2",
    "?state={odd}", "?state=queued&model={odd}", "?&&&=&", "?a[b]=c", "?%00=%00", "?limit=" + "9" * 4000,
    "?offset=2147483648", "?limit=10001", "?offset=%D9%A1", "?" + "a&" * 500, "?state=ended&limit=3",
)  # fmt: skip
_VALUES: Final = (*_ODD, "0", "1", "-1", "1.5", "1e3", "NaN", "true", "9" * 30, "0x1", "%201", "1_0")


def other_target(rng: random.Random, id: str) -> tuple[bytes, bytes]:
    """Return method and target of a request without a body; `id` names a request that may exist."""
    path = rng.choice(_PATHS).replace("{id}", id).replace("{odd}", rng.choice(_ODD))
    query = rng.choice(_QUERIES).replace("{odd}", rng.choice(_VALUES))
    return _method(path, rng), (path + query).encode("latin-1")


def _method(path: str, rng: random.Random) -> bytes:
    allowed: Sequence[bytes] = _METHODS
    if path == "/admin/v1/dead":
        allowed = (b"GET", b"HEAD", b"PUT")
    elif path.endswith(("/drain", "/retry")):
        allowed = (b"POST", b"GET")
    return rng.choice(allowed)
