"""Account of the instances' time in a simulation: shares by use, and idle intervals beside waiting work."""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any, Final

from qlm.agents.core.stats.gpu_time import BESIDE_WORK, GpuTime, GpuUse, Interval
from qlm.simulator.cluster.event_queue import EPOCH_NS
from qlm.simulator.results import SimulationResult

IDLE_COLUMNS: Final = ("instance", "began_s", "lasts_s", "use", "model", "waiting", "why", "plan")
"""Columns of idle.csv. `model` is awake, requests for the models in `waiting` wait; `why` is the reason that
stood longest, `plan` has the costs that the plan compared, of intervals longer than a second."""


def gpu_summary(result: SimulationResult) -> dict[str, Any]:
    """Summarize the account: shares of all time, seconds by instance, and the longest idle intervals."""
    named = dict(zip(result.instances, result.gpu_times, strict=True))
    return {
        "gpu_time": gpu_shares(result.gpu_times),
        "gpu_time_by_instance": {
            instance: {use.value: round(ns / 1e9, 6) for use, ns in time.ns.items()}
            for instance, time in named.items()
        },
        "idle_longest_s": {use.value: longest_s(result.gpu_times, use) for use in BESIDE_WORK},
    }


def gpu_shares(times: Iterable[GpuTime]) -> dict[str, float]:
    """Return the share of each use in the time of all instances; they add up to 1."""
    times = tuple(times)
    total_ns = sum(time.total_ns for time in times)
    return {use.value: sum(time.ns[use] for time in times) / max(total_ns, 1) for use in GpuUse}


def longest_s(times: Iterable[GpuTime], use: GpuUse) -> float:
    """Return the longest interval of a use on any instance, seconds."""
    return max((time.longest_ns[use] for time in times), default=0) / 1e9


def gpu_time_text(summary: Mapping[str, Any]) -> str:
    """Return the shares of a summary in one line."""
    shares, longest = summary["gpu_time"], summary["idle_longest_s"]
    used = ", ".join(f"{100 * share:.1f} % {use.replace('_', ' ')}" for use, share in shares.items() if share)
    idle = ", ".join(f"{lasts_s:.2f} s {use.replace('_', ' ')}" for use, lasts_s in longest.items())
    return f"GPU time: {used or 'none'}; longest {idle}"


def idle_csv(result: SimulationResult) -> str:
    """Return one row per interval in which an instance was idle while work that it could do waited."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(IDLE_COLUMNS)
    for instance, intervals in zip(result.instances, result.intervals, strict=True):
        writer.writerows((instance, *_row(each)) for each in intervals if each.use in BESIDE_WORK)
    return text.getvalue()


def _row(interval: Interval) -> tuple[object, ...]:
    activity = interval.activity
    began_s, lasts_s = (interval.began_ns - EPOCH_NS) / 1e9, interval.lasts_ns / 1e9
    reasons = (" ".join(activity.waiting), activity.why, interval.plan)
    return f"{began_s:.6f}", f"{lasts_s:.6f}", interval.use.value, activity.model, *reasons
