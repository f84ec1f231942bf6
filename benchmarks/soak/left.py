"""Search for what is left of requests once all have ended."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.process_figures import group_figures
from benchmarks.setups import Running
from benchmarks.soak.samples import journal_kinds, keys, rows
from support.cluster_load import depths

IDLE_S: Final = 150.0
"""Longest time until queues and groups without work are gone."""

_OF_ENDED: Final = frozenset({"request", "events", "log"})
"""Kinds of keys in Redis of ended requests, which are kept on purpose."""

_OF_NO_REQUEST: Final = frozenset({"incarnation", "probe", "clusters", "history"})
"""Kinds of entries of the journal that are there once, whatever is sent."""

_OF_WORK: Final = ("waiting", "group", "groups", "watchers")
_GAUGES: Final = (
    "qlm_gateway_open_requests", "qlm_gateway_open_streams", "qlm_controller_leases", "qlm_controller_groups",
    "qlm_controller_queue_size", "qlm_agent_held_leases", "qlm_agent_parked_requests",
    "qlm_agent_running_requests", "qlm_agent_staged_requests",
)  # fmt: skip


def wait_for_nothing(
    qlm: Running, queues_before: int, kept_max: int, descriptors: dict[str, float]
) -> list[str]:
    """Wait until nothing is left, and return what still is.

    Args:
        qlm: The idle cluster.
        queues_before: Queues before the first request.
        kept_max: Ended requests that may be kept.
        descriptors: Descriptors that each process may have.
    """
    until_s = time.monotonic() + IDLE_S
    left: list[str] = []
    while left := list(_left(qlm, queues_before, kept_max, descriptors)):
        if time.monotonic() > until_s:
            return left
        time.sleep(2)
    return []


def _left(qlm: Running, queues_before: int, kept_max: int, descriptors: dict[str, float]) -> Iterator[str]:
    for state in ("queued", "running", "parked"):
        for one in _get(qlm, f"requests?state={state}")["requests"]:
            yield f"request {one['id']} is {state}"
    yield from _gauges(qlm)
    yield from (
        _in_servers(qlm, queues_before, kept_max)
        if qlm.servers
        else left_in_file(qlm.data, queues_before, kept_max)
    )
    for name, most in descriptors.items():
        if (now := group_figures(qlm.members[name][0]).descriptors) > most:
            yield f"{name} has {now} descriptors; expected at most {most:g}"


def _get(qlm: Running, path: str) -> dict[str, Any]:
    found: dict[str, Any] = (
        httpx.get(f"{qlm.admin_url}/admin/v1/{path}", timeout=30).raise_for_status().json()
    )
    return found


def _gauges(qlm: Running) -> Iterator[str]:
    for line in httpx.get(f"{qlm.admin_url}/metrics", timeout=30).text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.partition("{")[0] in _GAUGES and float(value) > 0:
            yield f"{name} is {value}"


def left_in_file(data: Path, queues_before: int, kept_max: int) -> Iterator[str]:
    """Yield what is left of requests in the embedded queue, beside `kept_max` ended ones."""
    count = rows(data)
    if count["message"] or count["returned"]:
        yield f"{count['message']} messages and {count['returned']} marks of returned ones in SQLite"
    if count["queue"] > queues_before:
        yield f"{count['queue']} queues in SQLite, {queues_before} before"
    kinds = journal_kinds(data)
    if (ended := kinds.pop("ended", 0)) > kept_max:
        yield f"{ended} ended requests in the journal; expected at most {kept_max}"
    for kind in kinds.keys() - _OF_NO_REQUEST:
        yield f"{kinds[kind]} entries {kind} in the journal"


def _in_servers(qlm: Running, queues_before: int, kept_max: int) -> Iterator[str]:
    waiting = depths(qlm.servers["broker"])
    if any(waiting.values()):
        yield f"messages in RabbitMQ: { ({name: count for name, count in waiting.items() if count}) }"
    if len(waiting) > queues_before:
        yield f"{len(waiting)} queues in RabbitMQ, {queues_before} before"
    for kind, count in keys(qlm.servers["store"]).items():
        if kind in _OF_WORK or (kind in _OF_ENDED and count > kept_max):
            yield f"{count} keys {kind}:* in Redis"
