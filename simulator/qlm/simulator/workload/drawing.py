"""Drawing of a stream's requests: arrivals and lengths first, then the rules in turn."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qlm.simulator.engine.generation import PREFIX_TOKENS
from qlm.simulator.prefixes import PrefixIds, covered_tokens
from qlm.simulator.scenario import IntArray
from qlm.simulator.seeds import Seeds
from qlm.simulator.workload.arrivals import Arrivals, nanoseconds
from qlm.simulator.workload.limits import Fitted
from qlm.simulator.workload.slo_rules import Requests
from qlm.simulator.workload.stream import (
    DrawnLengths,
    Order,
    Stream,
    StreamCounts,
    TraceLengths,
    TraceTimes,
)
from qlm.simulator.workload.trace import Labels, Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """Requests of a stream as columns, shape (requests,) each; see `Workload`.

    Attributes:
        arrival_ns: Nanoseconds from the start of the simulation; never decreases.
        requests: Models, tenants and prompts.
        slo_class: Index in `Scenario.slo_classes`.
        output_tokens: Lengths of answers.
        max_tokens: Limits of the clients.
        prefixes: Block ids of prompts; empty if there are none.
        prefix_tokens: Tokens that these cover.
        counts: Counts of cut and skipped requests.
    """

    arrival_ns: IntArray
    requests: Requests
    slo_class: IntArray
    output_tokens: IntArray
    max_tokens: IntArray
    prefixes: PrefixIds
    prefix_tokens: IntArray
    counts: StreamCounts


def draw(stream: Stream, seeds: Seeds, load: float, context_tokens: IntArray) -> Drawn:
    """Draw the requests of a stream.

    Args:
        stream: Stream, valid by `maker.check_stream`.
        seeds: Random generators; each decision has its own.
        load: Factor on all rates; times of traces are divided by it.
        context_tokens: Context of each model, shape (models,).

    Raises:
        InvalidValueError: There are too many requests, or they arrive too late.
    """
    drawn = _rows(stream, seeds, load)
    models = _models(stream, drawn)
    served = np.flatnonzero(models >= 0)
    rows, models = drawn.at(served), models[served]
    fitted = stream.limits.fit(rows.prompt_tokens, rows.output_tokens, context_tokens[models])
    rows = rows.at(fitted.kept)
    requests = _requests(stream, rows, models[fitted.kept], fitted)
    prefixes = _prefixes(rows, fitted.prompt_tokens)
    limits = stream.max_tokens.tokens(requests.model, fitted.output_tokens)
    return Drawn(
        arrival_ns=_times(rows),
        requests=requests,
        slo_class=stream.slo.classes(requests, _rng(stream, seeds, "slo")),
        output_tokens=fitted.output_tokens,
        max_tokens=np.minimum(limits, context_tokens[requests.model] - fitted.prompt_tokens),
        prefixes=prefixes,
        prefix_tokens=_prefix_tokens(rows, prefixes, fitted.prompt_tokens),
        counts=StreamCounts(
            name=stream.name,
            requests=len(rows),
            zero_output_dropped=drawn.zero_output_dropped,
            left_out=len(drawn) - len(served),
            prompts_cut=fitted.prompts_cut,
            outputs_cut=fitted.outputs_cut,
            over_context_dropped=fitted.dropped,
        ),
    )


def _requests(stream: Stream, rows: Trace, models: IntArray, fitted: Fitted) -> Requests:
    return Requests(
        model=models,
        tenant=_tenants(stream, rows),
        prompt_tokens=fitted.prompt_tokens,
        slo_class=rows.slo_class,
    )


def _rows(stream: Stream, seeds: Seeds, load: float) -> Trace:
    """Combine arrivals, lengths and names to one trace."""
    times, lengths = stream.arrivals, stream.lengths
    if isinstance(times, TraceTimes):
        base = times.trace
        arrival_ns = _scaled(base, times.time_scale / load)
    else:
        base = None
        arrival_ns = _generated(times, _rng(stream, seeds, "arrivals"), load)
    count = len(arrival_ns)
    if isinstance(lengths, DrawnLengths):
        prompt = lengths.prompt.tokens(_rng(stream, seeds, "prompt_tokens"), count)
        output = lengths.output.tokens(_rng(stream, seeds, "output_tokens"), count)
        return _merged(base, arrival_ns, Trace(path=Path(), prompt_tokens=prompt, output_tokens=output))
    picked = _picked(lengths, _rng(stream, seeds, "rows"), count)
    return _merged(base, arrival_ns, lengths.trace.at(picked))


def _generated(arrivals: Arrivals, rng: np.random.Generator, load: float) -> IntArray:
    # Infinite times are refused below with a proper error; numpy's warnings would only add to it.
    with np.errstate(over="ignore", invalid="ignore"):
        return nanoseconds(arrivals.times_s(rng, load))


def _scaled(trace: Trace, factor: float) -> IntArray:
    assert trace.arrival_ns is not None
    with np.errstate(over="ignore", invalid="ignore"):
        times_ns = np.asarray(trace.arrival_ns * factor, dtype=np.float64)
        # Checked in seconds but rounded from nanoseconds, so that unscaled times do not change.
        nanoseconds(times_ns / 1e9)
    return np.asarray(np.rint(times_ns), dtype=np.int64)


def _picked(lengths: TraceLengths, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    if lengths.order is Order.RESAMPLE:
        return rng.integers(0, len(lengths.trace), count)
    return np.asarray(np.arange(count, dtype=np.int64) % len(lengths.trace))


def _merged(base: Trace | None, arrival_ns: IntArray, lengths: Trace) -> Trace:
    if base is None:
        return replace(lengths, arrival_ns=arrival_ns)
    dropped = [base.dropped_ns]
    if base.path != lengths.path:
        dropped.append(lengths.dropped_ns)
    return replace(
        lengths,
        arrival_ns=arrival_ns,
        model=base.model or lengths.model,
        tenant=base.tenant or lengths.tenant,
        slo_class=base.slo_class or lengths.slo_class,
        dropped_ns=np.concatenate(dropped),
    )


def _models(stream: Stream, rows: Trace) -> IntArray:
    """Return the model index of each row, -1 for those to skip."""
    if isinstance(stream.model, int):
        return np.full(len(rows), stream.model, dtype=np.int64)
    assert rows.model is not None
    index = [stream.model.get(name) for name in rows.model.names]
    return np.array([-1 if each is None else each for each in index], dtype=np.int64)[rows.model.codes]


def _tenants(stream: Stream, rows: Trace) -> Labels:
    if stream.tenant is None and rows.tenant is not None:
        return rows.tenant
    return Labels(np.zeros(len(rows), dtype=np.int64), (stream.tenant or "default",))


def _times(rows: Trace) -> IntArray:
    assert rows.arrival_ns is not None
    return rows.arrival_ns


def _prefixes(rows: Trace, prompt_tokens: IntArray) -> PrefixIds:
    blocks = (-(-prompt_tokens // PREFIX_TOKENS)).tolist()
    return tuple(ids[:count] for ids, count in zip(rows.prefixes, blocks, strict=False))


def _prefix_tokens(rows: Trace, prefixes: PrefixIds, prompt_tokens: IntArray) -> IntArray:
    if not prefixes:
        return np.zeros(len(rows), dtype=np.int64)
    if rows.prefix_tokens is None:
        return covered_tokens(prefixes, prompt_tokens)
    return np.asarray(np.minimum(rows.prefix_tokens, prompt_tokens))


def _rng(stream: Stream, seeds: Seeds, decision: str) -> np.random.Generator:
    return seeds.rng(f"workload/{stream.name}/{decision}")
