"""Health and readiness."""

from typing import Literal, TypedDict


class Health(TypedDict):
    """The process is alive."""

    status: Literal["ok"]  # `ok`


class Readiness(TypedDict):
    """Readiness, and the reason if the gateway is not ready."""

    status: Literal["ok", "unavailable"]  # `ok` (200) or `unavailable` (503)
    broker: str  # `ok`, or why the global queue cannot be used
    store: str  # `ok`, or why the shared state cannot be used
    sessions: str  # `ok`, or why clients receive no output, for example because the gateway stops
