"""Files of a simulation: one row per submitted request, and a summary (design section 7)."""

import csv
import io
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from qlm.domain.operations import Operation
from qlm.domain.outcome import Outcome
from qlm.simulator.gpu_report import gpu_summary
from qlm.simulator.prefixes import prefix_tokens, shared_tokens
from qlm.simulator.results import NEVER, REFUSED, UNFINISHED, Outcomes, SimulationResult
from qlm.simulator.scenario import IntArray, Workload
from qlm.simulator.workload.stream import StreamCounts

ANSWERED: Final = frozenset(outcome.value for outcome in Outcome if outcome.ok)
"""Outcomes of answered requests: whole, or cut at the length that the client allows."""

COLUMNS: Final = (
    "id",
    "model",
    "tenant",
    "slo_class",
    "arrival_s",
    "deadline_s",
    "first_token_s",
    "completion_s",
    "prompt_tokens",
    "output_tokens",
    "instance",
    "evictions",
    "engine_preemptions",
    "outcome",
    "met",
    "idle_s",
    "stalls",
    "qoe",
)
"""Columns of requests.csv. Times are seconds from the start of the simulation, empty where there is none.
`deadline_s` is the deadline of the answer or of its first token, depending on the objective. `idle_s`,
`stalls` and `qoe` are of requests with a reader: an objective with a pace in tokens per second."""


def requests_csv(result: SimulationResult) -> str:
    """Return the rows of submitted requests in order of arrival; equal seeds give equal bytes."""
    scenario, workload, outcomes = result.scenario, result.workload, result.outcomes
    models = [model.id for model in scenario.models]
    classes = [each.name for each in scenario.slo_classes]
    instances = [*result.instances, ""]
    columns: list[Iterable[object]] = [
        [f"r{number:07d}" for number in range(len(workload))],
        [models[index] for index in workload.model.tolist()],
        [workload.tenants[index] for index in workload.tenant.tolist()],
        [classes[index] for index in workload.slo_class.tolist()],
        _seconds(outcomes.arrival_ns),
        _seconds(_deadlines_ns(result)),
        _seconds(outcomes.first_token_ns),
        _seconds(outcomes.ended_ns),
        workload.prompt_tokens.tolist(),
        outcomes.tokens.tolist(),
        [instances[index] for index in outcomes.instance.tolist()],
        outcomes.evictions.tolist(),
        outcomes.engine_preemptions.tolist(),
        outcomes.outcome,
        outcomes.met.astype(int).tolist(),
        ["" if math.isnan(idle_s) else f"{idle_s:.6f}" for idle_s in outcomes.idle_s.tolist()],
        [
            "" if math.isnan(q) else n
            for n, q in zip(outcomes.stalls.tolist(), outcomes.qoe.tolist(), strict=True)
        ],
        ["" if math.isnan(qoe) else f"{qoe:.6f}" for qoe in outcomes.qoe.tolist()],
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(itertools.compress(zip(*columns, strict=True), arrived_rows(result).tolist()))
    return text.getvalue()


def summary(result: SimulationResult, streams: Sequence[StreamCounts] = ()) -> dict[str, Any]:
    """Summarize a run: shares of submitted requests, latencies and throughput of the answered ones.

    Shares and latencies leave out what arrived during the scenario's `warm_up_s`. Requests that had not
    arrived at the end are only counted (`not_arrived`).

    Args:
        result: Result of the run.
        streams: Counts of cut and skipped requests by stream.
    """
    workload, outcomes = result.workload, result.outcomes
    ended, arrived = outcomes.ended_ns != NEVER, arrived_rows(result)
    answered = np.array([each in ANSWERED for each in outcomes.outcome], dtype=np.bool_)
    span_s = float(outcomes.ended_ns.max() - workload.arrival_ns.min()) / 1e9 if ended.any() else 0.0
    counts = Counter(itertools.compress(outcomes.outcome, arrived.tolist()))
    plan_ms = np.array(result.plan_s) * 1000
    return {
        "scenario": result.scenario.name,
        "policy": result.policy,
        "seed": result.seed,
        "capacity_rps": result.scenario.capacity_rps,
        "submitted": int(arrived.sum()),
        "not_arrived": int((~arrived).sum()),
        "counted": int(counted_rows(result).sum()),
        "attainment": _share(outcomes.met[counted_rows(result)]),
        "attainment_by_class": {name: _share(outcomes.met[rows]) for name, rows in by_class(result)},
        "latency_by_class": {name: _latencies(result, rows & answered) for name, rows in by_class(result)},
        "reading_by_class": {name: _reading(outcomes, rows) for name, rows in by_class(result)},
        "outcomes": dict(sorted(counts.items())),
        "refused": counts[REFUSED],
        "unfinished": counts[UNFINISHED],
        "throughput_rps": _per(int(answered.sum()), span_s),
        "output_tokens_per_s": _per(int(outcomes.tokens.sum()), span_s),
        "swaps": result.swaps_warm + result.swaps_reload + result.swaps_cold,
        "swaps_warm": result.swaps_warm,
        "swaps_reload": result.swaps_reload,
        "swaps_cold": result.swaps_cold,
        "swap_seconds": round(result.swap_seconds, 6),
        "swaps_thrashed": sum(each.swaps_thrashed for each in result.operations),
        "operations": {
            operation.value: sum(each.count(operation) for each in result.operations)
            for operation in Operation
        },
        **gpu_summary(result),
        "moves": result.moves,
        "evictions": int(outcomes.evictions.sum()),
        "engine_preemptions": int(outcomes.engine_preemptions.sum()),
        "longest_first_token_s": _longest_s(result),
        "prefix_tokens_shared": _shared_tokens(workload, arrived),
        "prefix_tokens_hit": result.prefix_hits,
        "plans": len(result.plan_s),
        "planner_failures": result.planner_failures,
        "plan_p50_ms": _quantile(plan_ms, 0.5),
        "plan_p99_ms": _quantile(plan_ms, 0.99),
        "simulated_s": result.simulated_s,
        "events": result.events,
        "wall_s": result.wall_s,
        "streams": [asdict(each) for each in streams],
    }


def arrived_rows(result: SimulationResult) -> npt.NDArray[np.bool_]:
    """Return the mask of the submitted requests.

    Others were due after the horizon, or are calls of a task whose earlier call has not ended well.
    """
    arrived: npt.NDArray[np.bool_] = result.outcomes.arrival_ns != NEVER
    return arrived


def counted_rows(result: SimulationResult) -> npt.NDArray[np.bool_]:
    """Return the mask of the requests of which shares are taken: those that arrived after the warm-up.

    Calls of a task that never came, since an earlier one did not end well, count as well: they are missed.
    """
    arrived = arrived_rows(result)
    arrival_ns = np.where(arrived, result.outcomes.arrival_ns, result.workload.arrival_ns)
    counted: npt.NDArray[np.bool_] = arrival_ns >= round(result.scenario.warm_up_s * 1e9)
    return counted & (arrived | _lost_calls(result))


def _lost_calls(result: SimulationResult) -> npt.NDArray[np.bool_]:
    """Return the mask of the later calls of tasks of which a call ended without an answer."""
    tasks, outcomes = result.workload.tasks, result.outcomes
    if tasks is None:
        return np.zeros(len(result.workload), dtype=np.bool_)
    well = {*ANSWERED, UNFINISHED}
    failed = np.array([each not in well for each in outcomes.outcome], dtype=np.bool_)
    return ~arrived_rows(result) & np.isin(tasks.task, tasks.task[failed])


def by_class(result: SimulationResult) -> Sequence[tuple[str, npt.NDArray[np.bool_]]]:
    """Return each SLO class that has counted requests, with the mask of their rows."""
    counted = counted_rows(result)
    rows = [
        (each.name, counted & (result.workload.slo_class == number))
        for number, each in enumerate(result.scenario.slo_classes)
    ]
    return [(name, mask) for name, mask in rows if mask.any()]


def _shared_tokens(workload: Workload, arrived: npt.NDArray[np.bool_]) -> int:
    """Count the prompt tokens with which an earlier prompt of the same model began, too."""
    if not workload.prefixes:
        return 0
    covered, shared = prefix_tokens(workload), 0
    for model in np.unique(workload.model):
        rows = np.flatnonzero(arrived & (workload.model == model)).tolist()
        shared += shared_tokens(tuple(workload.prefixes[row] for row in rows), covered[rows].tolist())
    return shared


def _latencies(result: SimulationResult, rows: npt.NDArray[np.bool_]) -> dict[str, float | None]:
    arrival_ns = result.outcomes.arrival_ns[rows]
    first_ns = result.outcomes.first_token_ns[rows]
    first_s = (first_ns - arrival_ns)[first_ns != NEVER] / 1e9
    whole_s = (result.outcomes.ended_ns[rows] - arrival_ns) / 1e9
    return {
        f"{what}_{name}_s": _quantile(values, share)
        for what, values in (("first_token", first_s), ("completion", whole_s))
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }


def _reading(outcomes: Outcomes, rows: npt.NDArray[np.bool_]) -> dict[str, float | int] | None:
    """Return the idle time, pauses and quality of experience of a class; None without answered readers."""
    rows = rows & ~np.isnan(outcomes.qoe)
    if not rows.any():
        return None
    idle_s = outcomes.idle_s[rows]
    return {
        "idle_mean_s": float(idle_s.mean()),
        "idle_p50_s": float(np.quantile(idle_s, 0.5)),
        "idle_p99_s": float(np.quantile(idle_s, 0.99)),
        "stalls": int(outcomes.stalls[rows].sum()),
        "qoe_mean": float(outcomes.qoe[rows].mean()),
        "qoe_p10": float(np.quantile(outcomes.qoe[rows], 0.1)),
    }


def _deadlines_ns(result: SimulationResult) -> IntArray:
    targets_ms = [each.slo.target_ms for each in result.scenario.slo_classes]
    target_ns = np.array([NEVER if ms is None else round(ms * 1e6) for ms in targets_ms], dtype=np.int64)
    each_ns = target_ns[result.workload.slo_class]
    return np.where(each_ns == NEVER, NEVER, result.outcomes.arrival_ns + each_ns)


def _seconds(times_ns: IntArray) -> list[str]:
    return [
        "" if ns == NEVER else f"{ns // 1_000_000_000}.{ns % 1_000_000_000 // 1000:06d}"
        for ns in times_ns.tolist()
    ]


def _longest_s(result: SimulationResult) -> float | None:
    """Return the longest time to a first token; None without any."""
    first_ns = result.outcomes.first_token_ns
    waits_ns = (first_ns - result.outcomes.arrival_ns)[first_ns != NEVER]
    return float(waits_ns.max()) / 1e9 if waits_ns.size else None


def _share(met: npt.NDArray[np.bool_]) -> float | None:
    return float(met.mean()) if met.size else None


def _per(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _quantile(values: npt.NDArray[np.floating[Any]], share: float) -> float | None:
    return float(np.quantile(values, share)) if values.size else None
