"""One measurement: a load on one server, with the processor time of each process."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.processor_time import numbers
from support.watchdog import group_members


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of one load on one server.

    Attributes:
        ttft_p50_ms: Time from when a request was due to its first event.
        ttft_p95_ms: The same, 95th percentile.
        gap_p50_ms: Time between two arrivals of events of a stream.
        gap_p99_ms: The same, 99th percentile.
        gap_max_ms: The same, the longest of all.
        tokens_per_event: Tokens by arrivals of events.
        processor_s: Processor time per 1 000 tokens, by process.
        requests: Number of streams.
        tokens: Tokens of all of them.
    """

    ttft_p50_ms: float
    ttft_p95_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    gap_max_ms: float
    tokens_per_event: float
    processor_s: dict[str, float]
    requests: int
    tokens: int


def measure(
    port: int, requests: Sequence[tuple[float, dict[str, Any]]], tokens: int, groups: Mapping[str, int]
) -> Measured:
    """Play a load in a client of its own.

    Args:
        port: Where the server listens.
        requests: Times and bodies.
        tokens: Tokens of each answer that does not say how many it has.
        groups: Process groups by name.
    """
    before = {name: _used_s(group) for name, group in groups.items()}
    with tempfile.TemporaryDirectory(prefix="qlm-streams-") as folder:
        given, made = Path(folder, "requests.json"), Path(folder, "arrivals.json")
        given.write_text(json.dumps(requests), "utf-8")
        client = os.times()
        argv = [sys.executable, "-m", "benchmarks.streams.client", str(port), str(given), str(made)]
        subprocess.run(argv, check=True)
        streams = json.loads(made.read_text("utf-8"))
    used = {name: _used_s(group) - before[name] for name, group in groups.items()}
    after = os.times()
    used["client"] = after[2] + after[3] - client[2] - client[3]
    total = sum(tokens if counted is None else counted for _, counted in streams)
    return figures([arrivals for arrivals, _ in streams], total, used)


def figures(arrivals: Sequence[Sequence[float]], total: int, used_s: Mapping[str, float]) -> Measured:
    """Evaluate the arrivals of all streams, in seconds since each was due; `total` is their tokens."""
    firsts = sorted(each[0] * 1000 for each in arrivals)
    gaps = sorted((late - early) * 1000 for each in arrivals for early, late in pairwise(each)) or [0.0]
    return Measured(
        ttft_p50_ms=median(firsts),
        ttft_p95_ms=_quantile(firsts, 0.95),
        gap_p50_ms=median(gaps),
        gap_p99_ms=_quantile(gaps, 0.99),
        gap_max_ms=gaps[-1],
        tokens_per_event=total / sum(map(len, arrivals)),
        processor_s={name: each / total * 1000 for name, each in used_s.items()},
        requests=len(arrivals),
        tokens=total,
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _used_s(group: int) -> float:
    """Return the processor time of a group, children that have ended included, seconds."""
    ticks = 0
    for member in group_members(group):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2]
        ticks += sum(numbers(fields, 11, 15))
    return ticks / os.sysconf("SC_CLK_TCK")
