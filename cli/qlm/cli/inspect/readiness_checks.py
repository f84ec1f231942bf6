"""Checks of a gateway's parts and its disk: what `/readyz` and `/admin/v1/store` know."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qlm.cli.inspect.finding import Finding

OK: Final = "ok"

DISK_FREE_MIN_BYTES: Final = 1_000_000_000

_CURES: Final[Mapping[str, str]] = {
    "broker": "start RabbitMQ again, or look at its log; the embedded queue needs a disk with free space. "
    "The gateway goes on by itself when the queue answers: requests that were accepted are in it",
    "store": "start Redis again, or look at its log; the embedded state needs a disk with free space. "
    "The gateway goes on by itself when it answers: the controller rebuilds the state from queue and agents",
    "sessions": "the gateway is starting or stopping; if that lasts, look at its log",
}

_FULL: Final = (
    "it is full; a restart does not help. Give it more with `redis-cli CONFIG SET maxmemory`, and then keep "
    "less (results.kept_max, results.kept_s). QLM goes on by itself when there is room, and nothing that was "
    "accepted is lost"
)


def readiness(ready: Mapping[str, str]) -> list[Finding]:
    """Name the parts of a gateway that are away, with their own words; one line if none is."""
    parts = {name: state for name, state in ready.items() if name != "status"}
    away = {name: state for name, state in parts.items() if state != OK}
    if not away:
        return [Finding("gateway", True, f"ready ({', '.join(sorted(parts))})")]
    up = Finding("gateway", True, f"it answers, and cannot accept requests without its {' and '.join(away)}")
    return [up, *(Finding(name, False, state, _cure(name, state)) for name, state in away.items())]


def _cure(part: str, state: str) -> str:
    return _FULL if "'maxmemory'" in state else _CURES.get(part, "")


def file_storage(error: str | None) -> Finding:
    """Judge what came of a try of the bucket for files and batches; None without an error."""
    remedy = "" if error is None else "see section `files.s3` of the configuration; files and batches wait"
    return Finding("files", error is None, error or "the bucket takes, lists and deletes objects", remedy)


def disk_here() -> Finding:
    """Look at the disk of the present folder, where `qlm serve` would keep its data."""
    folder = Path.cwd()
    return disk({"path": str(folder), "free_bytes": shutil.disk_usage(folder).free})


def disk(seen: Mapping[str, Any]) -> Finding:
    """Judge a disk on which an embedded queue is, or would be."""
    free = seen["free_bytes"]
    ok = free >= DISK_FREE_MIN_BYTES
    remedy = "" if ok else "free some space: the embedded queue refuses requests when the disk is full"
    return Finding("disk", ok, f"{free / 1e9:.1f} GB free in {seen['path']}", remedy)
