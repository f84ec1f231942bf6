"""Health and readiness."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class Health(TypedDict):
    """The process is alive."""

    status: Literal["ok"]  # `ok`


class Readiness(TypedDict):
    """Readiness, and the reason if the gateway is not ready."""

    status: Literal["ok", "unavailable"]  # `ok` (200) or `unavailable` (503)
    broker: str  # `ok`, or why the global queue cannot be used
    store: str  # `ok`, or why the shared state cannot be used
    sessions: str  # `ok`, or why clients receive no output, for example because the gateway stops


class Listeners(TypedDict):
    """Listeners of the gateway."""

    warnings: Sequence[str]  # A sentence for each that is open to anyone; empty if none is


class Disk(TypedDict):
    """The disk of the embedded queue."""

    path: str  # Folder of the queue
    free_bytes: int  # What can still be written
    total_bytes: int  # Size of its file system


class StoreSettings(TypedDict):
    """What is wrong with the shared state, and the disk of an embedded one."""

    warnings: Sequence[
        str
    ]  # Settings and lost data that break QLM's promises, a sentence each; empty if none
    disk: Disk | None  # That of the embedded queue; null if queue and state are servers


class Version(TypedDict):
    """The version that serves, in vLLM's form."""

    version: str  # Version of QLM


class ApiDocument(TypedDict):
    """The routes of a listener, as OpenAPI 3.1 defines it."""

    openapi: str  # Version of OpenAPI
    info: Mapping[str, Any]  # Title, version and description
    servers: Sequence[Mapping[str, Any]]  # The listener itself: paths begin at its root
    paths: Mapping[str, Any]  # The routes
    components: Mapping[str, Any]  # Schemas and responses that routes share
    tags: Sequence[Mapping[str, Any]]  # Groups of routes
