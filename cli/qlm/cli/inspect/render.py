"""Tables of cluster state for a terminal."""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from qlm.cli.inspect.layout import Column, Table, printable
from qlm.domain.formats.clusters import ALL
from qlm.domain.formats.strands import divided_name


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    spare: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Table:
    """Build a table; a column whose title ends in `>` is aligned to the right.

    Args:
        title: Line above it.
        columns: Headings.
        rows: Values of each row; None is shown as `-`.
        spare: Headings, without `>`, of the columns that a narrow terminal leaves out first.
        notes: Lines below it.
    """
    cells = [tuple(map(printable, row)) for row in rows]
    made = tuple(
        Column(heading.rstrip(">"), tuple(row[at] for row in cells), heading.endswith(">"))
        for at, heading in enumerate(columns)
    )
    return Table(title, made, tuple(spare), tuple(notes))


def ago(at_s: float | None) -> str | None:
    """Format a point in time relative to now: `3.2s ago`, `in 12s`."""
    if at_s is None:
        return None
    away_s = at_s - time.time()
    return f"in {span(away_s)}" if away_s >= 0 else f"{span(-away_s)} ago"


def span(seconds: float) -> str:
    """Format a duration with one fitting unit."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return (
                f"{seconds / divisor:.1f}{unit}"
                if seconds / divisor < 10
                else f"{seconds / divisor:.0f}{unit}"
            )
    return f"{seconds / 86_400:.0f}d"


def queues(data: dict[str, Any]) -> list[Table]:
    """Lay out class queues and virtual queues."""
    classes = table(
        "class queues",
        (
            "model",
            "objective",
            "priority>",
            "waiting>",
            "groups>",
            "oldest",
            "mean prompt>",
            "mean output>",
            "ended>",
        ),
        (
            (
                each["model"],
                _objective(each),
                each["priority"],
                each["queued"],
                each["groups"],
                ago(_oldest_s(each)),
                _tokens(each["mean_prompt_tokens"]),
                _tokens(each["mean_output_tokens"]),
                each["finished"],
            )
            for each in data["classes"]
        ),
        spare=("ended", "mean output", "mean prompt", "groups", "priority"),
    )
    virtual = table(
        "virtual queues",
        ("instance", "next groups: class, waiting requests, deadline"),
        ((each["instance"], _groups(each["groups"])) for each in data["virtual_queues"]),
    )
    return [classes, virtual]


def _oldest_s(each: dict[str, Any]) -> float | None:
    """Return the arrival of the oldest waiting request; None also if the gateway is of an earlier version."""
    oldest_s: float | None = each.get("oldest_arrival_s")
    return oldest_s


def _objective(each: dict[str, Any]) -> str:
    cluster, strand = divided_name(each.get("cluster", ALL))
    divided = "" if cluster == ALL else f", {cluster} tokens"
    divided += "" if strand is None else f", strand {strand}"
    return f"{each['slo_class']}{divided}{' (late)' if each['late'] else ''}"


def groups(data: dict[str, Any]) -> Table:
    """Lay out request groups."""
    return table(
        "request groups",
        ("group", "model", "objective", "waiting>", "pulled>", "sealed", "deadline", "on"),
        (
            (
                each["id"],
                each["model"],
                _objective(each),
                each["remaining"],
                each["pulled"],
                "yes" if each["sealed"] else "no",
                ago(each["deadline_s"]),
                ", ".join(each["instances"]) or None,
            )
            for each in data["groups"]
        ),
        spare=("sealed", "pulled"),
    )


def instances(data: dict[str, Any]) -> Table:
    """Lay out live instances, and those that Ray has not placed yet."""
    live = (
        (
            each["id"],
            each["accelerator"],
            each["active_model"],
            each["running"],
            each["parked"],
            f"{each['kv_used_tokens']}/{(each['capacity'] or {}).get('kv_tokens', '-')}",
            ", ".join(f"{model} {state}" for model, state in each["engines"].items()),
            "draining" if each["draining"] else each["error"] or None,
        )
        for each in data["instances"]
    )
    unplaced = (
        (each["id"], *(None,) * 6, f"{each['state']}: {each['why']}") for each in data.get("unplaced", ())
    )
    columns = ("instance", "accelerator", "serving", "running>", "parked>", "KV tokens>", "engines", "note")
    return table(
        "instances", columns, chain(live, unplaced), spare=("accelerator", "parked", "engines", "serving")
    )


def operations(data: dict[str, Any]) -> Iterator[Table]:
    """Lay out the operations of live instances, and the time that model swaps cost each class."""
    rows = [(each["id"], each["operations"]) for each in data["instances"]]
    yield table(
        "operations",
        ("instance", "model", "operation", "count>", "seconds>", "mean ms>"),
        (
            (
                id,
                one["model"],
                one["operation"],
                one["count"],
                f"{one['seconds']:.2f}",
                f"{one['seconds'] / one['count'] * 1000:.1f}",
            )
            for id, stats in rows
            for one in stats["counts"]
        ),
    )
    yield table(
        "model swaps",
        ("instance", "swaps>", "per minute>", "per 1000 requests>", "thrashed>", "lost to class", "seconds>"),
        (
            (
                id,
                stats["model_swaps"],
                _ratio(stats["model_swaps"] * 60, stats["observed_s"]),
                _ratio(stats["model_swaps"] * 1000, stats["ended"]),
                stats["swaps_thrashed"],
                charge["class"] or "(none waited)",
                f"{charge['seconds']:.2f}",
            )
            for id, stats in rows
            for charge in stats["swap_lost"]
        ),
    )


def _ratio(count: float, of: float) -> str:
    return f"{count / of:.2f}" if of else "-"


TASK_COLUMNS: Final = ("task", "calls left>", "task deadline")
"""Columns of requests that belong to tasks; shown if any does."""


def requests(data: dict[str, Any], notes: Sequence[str] = ()) -> Table:
    """Lay out requests."""
    columns = (
        *("request", "model", "state", "outcome", "arrived", "deadline", "late"),
        *("prompt>", "output>", "instance"),
    )
    of_tasks = any(_task(each) for each in data["requests"])
    return table(
        "requests",
        columns + TASK_COLUMNS * of_tasks,
        (
            (
                each["id"],
                each["model"],
                each["status"],
                each["outcome"],
                ago(each["arrival_s"]),
                ago(each["deadline_s"]),
                _late(each),
                each["prompt_tokens"],
                each["output_tokens"],
                each["instance"],
                *_task_cells(each)[: len(TASK_COLUMNS) * of_tasks],
            )
            for each in data["requests"]
        ),
        spare=("output", "prompt", "instance", "outcome", "arrived"),
        notes=notes,
    )


def _task(each: dict[str, Any]) -> dict[str, Any] | None:
    """Return the task of a request; None if it stands alone, or the gateway is of an earlier version."""
    found: dict[str, Any] | None = each.get("slo", {}).get("task")
    return found


def _task_cells(each: dict[str, Any]) -> tuple[str | None, int | None, str | None]:
    if (task := _task(each)) is None:
        return None, None, None
    return task["id"], task["calls_left"], ago(task["deadline_s"])


def _late(each: dict[str, Any]) -> str | None:
    """Return `no`, `by 1.0s`, or `missed` if it ended without an answer; None while that is open."""
    if each.get("met") is None:  # or the gateway is of an earlier version
        return None
    late_by_s = each["late_by_s"]
    return "no" if each["met"] else "missed" if late_by_s is None else f"by {span(late_by_s)}"


def dead_letters(data: dict[str, Any]) -> Table:
    """Lay out dead letters, with the request's data where the message can be read."""
    letters = data["letters"]
    return table(
        f"dead letters: {len(letters)} of {data['total']}",
        ("#>", "letter", "since", "found in", "bytes>", "request", "model", "objective", "why"),
        (
            (
                line,
                each["id"],
                ago(each["at_s"]),
                each["queue"],
                each["bytes"],
                *((each["request"] or {}).get(key) for key in ("id", "model", "slo_class")),
                each["reason"],
            )
            for line, each in enumerate(letters, 1)
        ),
    )


def event_history(data: dict[str, Any]) -> list[Table]:
    """Lay out one request and its events."""
    start_s = data["arrival_s"]
    events = table(
        f"{data['id']}: {data['model']}, {data['outcome'] or data['status']}",
        ("after>", "event", "instance", "why"),
        (
            (f"{each['at_s'] - start_s:.3f}s", each["what"], each["instance"], each["why"] or None)
            for each in data["events"]
        ),
    )
    return [requests({"requests": [data]}), events]


def _groups(each: list[dict[str, Any]]) -> str | None:
    shown = [
        f"{group['id']} ({group['model']}, {_objective(group)}: {group['remaining']}{_due(group)})"
        for group in each[:6]
    ]
    more = f" … {len(each) - 6} more" if len(each) > 6 else ""
    return " → ".join(shown) + more if shown else None


def _due(group: dict[str, Any]) -> str:
    due = ago(group["deadline_s"])
    return "" if due is None else f", {due}"


def _tokens(mean: float | None) -> str | None:
    return None if mean is None else f"{mean:.0f}"
