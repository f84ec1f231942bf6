"""Accuracy of forecast completion times on the simulated engine: `python -m benchmarks.rct`.

One instance of each shipped profile serves requests with the lengths of published traces, first come, first
served. Its forecasts are compared with the outcomes:

* bursts: 2 000 requests at once, after 1 000 answers at 30 % load and an idle time; figures for requests
beyond the
  first batch, and for groups;
* open loops: Poisson arrivals of two classes of different lengths at loads 0.6, 0.9 and 1.2, also earliest
deadline
  first. Loads are relative to the estimator's steady state; the engine's own rate is printed beside it.

QLM_TRACES is the folder of the traces (`rct_points.TRACES` lists the files).
"""

import argparse
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from benchmarks.rct_figures import Row, Run, judged
from benchmarks.rct_points import TRACES, Point, bursts, open_loops, read_traces
from qlm.rct_estimator.profiles.builtin import builtin_profiles

LOADS: Final = (0.6, 0.9, 1.2)
POLICIES: Final = ("fcfs", "edf")
QUICK_PROFILES: Final = (("mistral-7b", "A10", 1), ("vicuna-13b", "H100", 1))

R2_MIN: Final = 0.99
GROUP_ERROR_MAX: Final = 0.10
COVERAGE: Final = (0.85, 0.95)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all points; print the tables and the summary."""
    parser = argparse.ArgumentParser(
        prog="rct", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two profiles, two traces, under two minutes")
    parser.add_argument("--part", choices=("burst", "open"), help="only this part")
    parser.add_argument("--stride", type=int, default=1, help="only every n-th profile")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first point; each point has its own")
    parser.add_argument(
        "--out", type=Path, default=Path("build/rct"), help="folder for rct.json [%(default)s]"
    )
    options = parser.parse_args(arguments)
    folder = Path(os.environ.get("QLM_TRACES", ""))
    if missing := [path for path, _ in TRACES.values() if not (folder / path).is_file()]:
        parser.error(f"QLM_TRACES is {str(folder)!r}; expected a folder with {', '.join(missing)}")
    traces, began_s = read_traces(folder), time.perf_counter()
    runs = []
    print(HEADER)
    for number, point in enumerate(_points(options.quick, options.part, options.stride)):
        run = judged(point, traces, options.seed + number)
        runs.append(run)
        for row in run.rows:
            print(_line(row, run), flush=True)
    rows = [row for run in runs for row in run.rows]
    summary = _summary(rows)
    print("\n".join(["", *summary, f"{len(runs)} simulations in {time.perf_counter() - began_s:.0f} s"]))
    options.out.mkdir(parents=True, exist_ok=True)
    plain = {"rows": [_plain(run, row) for run in runs for row in run.rows]}
    (options.out / "rct.json").write_bytes(orjson.dumps(plain, option=orjson.OPT_INDENT_2) + b"\n")
    print(f"written to {options.out / 'rct.json'}")
    return 0


def _points(quick: bool, part: str | None, stride: int) -> list[Point]:
    profiles = [
        each
        for each in builtin_profiles()[:: max(1, stride)]
        if not quick or (each.model, each.accelerator, each.gpus) in QUICK_PROFILES
    ]
    traces = ("azure", "arxiv") if quick else tuple(TRACES)
    points = [] if part == "open" else bursts(profiles, traces)
    if part != "burst":
        points += open_loops(profiles, LOADS, ("fcfs",) if quick else POLICIES, 2000 if quick else 4000)
    return points


HEADER: Final = (
    f"{'instance':<18} {'traces':<12} {'load':>5} {'policy':<6} {'class':<7} {'time':<11} {'n':>5} "
    f"{'mean s':>8} {'error %':>7} {'bias s':>8} {'R2':>7} {'ceiling':>7} {'in 90 %':>7} {'width s':>8} "
    f"{'oracle s':>8} {'rps/est':>7}"
)


def _line(row: Row, run: Run) -> str:
    point, a = row.point, row.accuracy
    load = "burst" if point.load is None else f"{point.load:g}"
    return (
        f"{point.name:<18} {'+'.join(point.traces):<12} {load:>5} {point.policy:<6} {row.slo_class:<7} "
        f"{row.time:<11} {a.count:>5} {a.actual_mean_s:>8.2f} {100 * a.error_share:>7.1f} {a.bias_s:>8.2f} "
        f"{a.r2:>7.4f} {row.ceiling:>7.4f} {100 * a.coverage:>7.1f} {a.width_s:>8.2f} "
        f"{a.oracle_width_s:>8.2f} {run.measured_rps / run.predicted_rps:>7.3f}"
    )


def _summary(rows: Sequence[Row]) -> list[str]:
    lines = []
    in_burst = [row for row in rows if row.point.load is None]
    for what in ("wait", "completion"):
        named = [row for row in in_burst if row.time == what]
        reachable = [row for row in named if row.ceiling >= R2_MIN]
        lines.append(
            _spread(f"burst, {what}: R2 (at least {R2_MIN})", [r.accuracy.r2 for r in named], low=True)
        )
        lines.append(
            _spread(
                f"  of those whose ceiling is {R2_MIN} or more", [r.accuracy.r2 for r in reachable], low=True
            )
        )
        lines.append(_spread("  R2 less its ceiling", [r.accuracy.r2 - r.ceiling for r in named], low=True))
        lines.append(_spread("  mean error, %", [100 * r.accuracy.error_share for r in named], low=False))
        lines.append(_spread("  ceiling of R2", [r.ceiling for r in named], low=True))
    lines.append(_spread("burst, time in the batch: mean off by, %", _service_errors(in_burst), low=False))
    errors = [100 * row.accuracy.error_share for row in in_burst if row.time == "group"]
    lines.append(
        _spread(f"burst, groups: mean error (at most {100 * GROUP_ERROR_MAX:g} %), %", errors, low=False)
    )
    for policy, load, what in itertools.product(POLICIES, LOADS, ("first_token", "completion")):
        at = [r for r in rows if (r.point.policy, r.point.load, r.time) == (policy, load, what)]
        lines += _coverage(f"{policy} at {load:g}, {what}", at)
    return lines


def _service_errors(rows: Sequence[Row]) -> list[float]:
    """Return errors of the mean time from batch slot to end, percent: completion minus wait."""
    of_time = {(id(row.point), row.slo_class, row.time): row.accuracy for row in rows}
    errors = []
    for (point, name, time_), done in of_time.items():
        if time_ == "completion":
            wait = of_time[point, name, "wait"]
            service_s = done.actual_mean_s - wait.actual_mean_s
            errors.append(100 * abs(done.bias_s - wait.bias_s) / service_s)
    return errors


def _coverage(name: str, rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    shares = [row.accuracy.coverage for row in rows]
    low, high = COVERAGE
    covered = sum(low <= share <= high for share in shares)
    classes = {row.slo_class for row in rows}
    medians = {c: np.median([r.accuracy.coverage for r in rows if r.slo_class == c]) for c in sorted(classes)}
    line = (
        f"{name}: in 90 % interval median {', '.join(f'{c} {100 * m:.1f}' for c, m in medians.items())} %, "
        f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %; {covered} of {len(shares)} classes within "
        f"{100 * low:g}-{100 * high:g} %"
    )
    widths = [row.accuracy.width_s / row.accuracy.oracle_width_s for row in rows]
    known = [width for width in widths if np.isfinite(width)]
    return [line + (f"; width over oracle's median {np.median(known):.1f}" if known else "")]


def _spread(name: str, values: Sequence[float], *, low: bool) -> str:
    known = [value for value in values if not np.isnan(value)]
    if not known:
        return f"{name}: none"
    worst = min(known) if low else max(known)
    return f"{name}: worst {worst:.4g}, median {np.median(known):.4g} of {len(known)}"


def _plain(run: Run, row: Row) -> dict[str, Any]:
    return {**row.plain(), "predicted_rps": run.predicted_rps, "measured_rps": run.measured_rps}


if __name__ == "__main__":
    raise SystemExit(main())
