"""Health and readiness."""

from typing import Literal, TypedDict


class Health(TypedDict):
    """Always the same.

    Attributes:
        status: `ok`.
    """

    status: Literal["ok"]


class Readiness(TypedDict):
    """Whether it can serve, and what is wrong if not.

    Attributes:
        status: `ok` (200) or `unavailable` (503).
        broker: `ok`, or why the global queue cannot be used.
        store: `ok`, or why the shared state cannot be used.
        sessions: `ok`, or why output is not brought to clients, for example because the gateway stops.
    """

    status: Literal["ok", "unavailable"]
    broker: str
    store: str
    sessions: str
