"""Verdict on the readings of one setup, its table, and its picture."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.soak.drift import drift, floors
from benchmarks.soak.samples import DISK

DRIFT_MAX: Final = 0.05
P99_DRIFT_MAX: Final = 0.25
"""Drift of P99; one minute has few answers beyond it."""

_JOURNAL_S: Final = 120.0
"""Span of which the lowest size on the disk counts: a server fills its journal, then drops it at once."""

_SPANS_MIN: Final = 4
"""In a shorter measurement, all sizes count."""

_SMALL: Final = 1.0
"""Change of a count, or of a size in MB, that is no drift however small the whole."""


def judged_of(
    name: str, times_s: Sequence[float], values: Sequence[float]
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the times and values of a figure that its drift is taken from."""
    at_s, lowest = floors(times_s, values, _JOURNAL_S)
    return (at_s, lowest) if name.endswith(DISK) and len(at_s) >= _SPANS_MIN else (times_s, values)


def report(arm: str, found: dict[str, Any]) -> list[str]:
    """Print the tables of one setup; return what is wrong."""
    wrong = [f"wrong answer: {each}" for each in found["wrong"]] + [f"left: {each}" for each in found["left"]]
    times_s = [each["at_s"] for each in found["readings"]]
    print(f"{arm}: {found['answers']} answers")
    print(f"{'':34} {'before':>9} {'median':>9} {'last':>9} {'idle':>9}   drift")
    for name in found["before"]:
        values = [each[name] for each in found["readings"]]
        at_s, judged = judged_of(name, times_s, values)
        change, level = drift(at_s, judged), statistics.median(judged)
        row = (found["before"][name], statistics.median(values), values[-1], found["after"][name])
        print(f"  {name:32}", *(f"{each:9.1f}" for each in row), f"{100 * change:+6.1f} %")
        if change > DRIFT_MAX and change * (level or 1.0) > _SMALL:
            wrong.append(f"{name} drifts by {100 * change:+.1f} %")
    return wrong + _latency(found["minutes"])


def _latency(minutes: Sequence[dict[str, float]]) -> list[str]:
    print("  minute   P50 ms   P99 ms")
    for each in minutes:
        print(f"  {each['minute']:6.0f} {each['p50_ms']:8.1f} {each['p99_ms']:8.1f}")
    wrong = []
    for name, most in (("p50_ms", DRIFT_MAX), ("p99_ms", P99_DRIFT_MAX)):
        change = drift([each["minute"] for each in minutes], [each[name] for each in minutes])
        print(f"  {name} drifts by {100 * change:+.1f} %", flush=True)
        if change > most:
            wrong.append(f"{name} drifts by {100 * change:+.1f} %")
    return wrong


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw memory of each process and latency over time."""
    from qlm.cli.plots.simulation import colour, figure

    readings, minutes = found["readings"], found["minutes"]
    picture, axes = figure("Memory of each process, and latency", height=5.0)
    names = [name for name in found["before"] if name.endswith("RSS, MB")]
    for number, name in enumerate(names):
        axes.plot(
            [each["at_s"] / 60 for each in readings],
            [each[name] for each in readings],
            label=name,
            color=colour(number),
        )
    axes.set(xlabel="minute", ylabel="MB", ylim=(0, None))
    other = axes.twinx()
    other.plot(
        [each["minute"] + 0.5 for each in minutes],
        [each["p99_ms"] for each in minutes],
        "k:",
        label="P99, ms",
    )
    other.set(ylabel="P99, ms", ylim=(0, None))
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path)
