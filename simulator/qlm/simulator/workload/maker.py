"""Workload of several streams."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import IntArray, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.workload.arrivals import check_requests
from qlm.simulator.workload.drawing import Drawn, draw
from qlm.simulator.workload.slo_rules import ByColumn
from qlm.simulator.workload.stream import Stream, StreamCounts, TraceLengths, TraceTimes
from qlm.simulator.workload.trace import Labels, Trace, ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadMaker:
    """Draws the requests of a seed; used as `Scenario.make_workload`.

    Attributes:
        streams: Streams with different names.
        context_tokens: Context of each model, in the order of the scenario.
        load: Factor on all rates.
    """

    streams: tuple[Stream, ...]
    context_tokens: tuple[int, ...]
    load: float = 1.0

    def __post_init__(self) -> None:
        names = [stream.name for stream in self.streams]
        if not names or len(set(names)) < len(names):
            raise InvalidValueError("workload", names, "one or more streams, each with a name of its own")
        for stream in self.streams:
            check_stream(stream)

    def __call__(self, seeds: Seeds) -> Workload:
        """Draw the requests of a seed."""
        return self.draw(seeds)[0]

    def draw(self, seeds: Seeds) -> tuple[Workload, tuple[StreamCounts, ...]]:
        """Draw the requests of a seed; also return the counts of cut and skipped requests by stream.

        Raises:
            InvalidValueError: There are too many, or they arrive too late; names the stream
                (`workload.NAME`).
        """
        context = np.array(self.context_tokens, dtype=np.int64)
        drawn: list[Drawn] = []
        for stream in self.streams:
            drawn.append(_named(stream, seeds, self.load, context))
            check_requests("workload", sum(each.counts.requests for each in drawn))
        return _merged(drawn), tuple(each.counts for each in drawn)


def _named(stream: Stream, seeds: Seeds, load: float, context: IntArray) -> Drawn:
    try:
        return draw(stream, seeds, load, context)
    except InvalidValueError as error:
        field = f"workload.{stream.name}.{error.field}"
        raise InvalidValueError(field, error.value, error.expected) from None


def _merged(drawn: list[Drawn]) -> Workload:
    tenants = tuple(sorted({name for each in drawn for name in each.requests.tenant.names}))
    tenant = _joined([_codes(each, tenants) for each in drawn])
    arrival_ns = _joined([each.arrival_ns for each in drawn])
    model = _joined([each.requests.model for each in drawn])
    slo_class = _joined([each.slo_class for each in drawn])
    prompt = _joined([each.requests.prompt_tokens for each in drawn])
    output = _joined([each.output_tokens for each in drawn])
    max_tokens = _joined([each.max_tokens for each in drawn])
    prefix_tokens = _joined([each.prefix_tokens for each in drawn])
    prefixes: list[tuple[int, ...]] = []
    if any(each.prefixes for each in drawn):
        for each in drawn:
            prefixes.extend(each.prefixes or [()] * len(each.arrival_ns))
    # Equal times are ordered by content, so that the order of streams and rows has no effect.
    keys = [prefix_tokens, ranks(prefixes)] if prefixes else []
    order = np.lexsort([*keys, max_tokens, output, prompt, slo_class, tenant, model, arrival_ns])
    return Workload(
        arrival_ns=arrival_ns[order],
        model=model[order],
        tenant=tenant[order],
        slo_class=slo_class[order],
        prompt_tokens=prompt[order],
        output_tokens=output[order],
        max_tokens=max_tokens[order],
        tenants=tenants,
        prefixes=tuple(prefixes[row] for row in order.tolist()) if prefixes else (),
        prefix_tokens=prefix_tokens[order] if prefixes else None,
    )


def _codes(drawn: Drawn, tenants: tuple[str, ...]) -> IntArray:
    own = drawn.requests.tenant
    place = {name: index for index, name in enumerate(tenants)}
    return np.array([place[name] for name in own.names], dtype=np.int64)[own.codes]


def _joined(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts)


def check_stream(stream: Stream) -> None:
    """Check that the traces of a stream have what its rules need.

    Raises:
        InvalidValueError: Times, model names or class names are missing, or a name is not in the rules; names
            stream, key and file.
    """
    key = f"workload.{stream.name}"
    if isinstance(stream.arrivals, TraceTimes) and stream.arrivals.trace.arrival_ns is None:
        shown = f"{stream.arrivals.trace.path} without times"
        raise InvalidValueError(f"{key}.arrivals.trace", shown, "a trace with times")
    if not isinstance(stream.model, int):
        names = _needed(f"{key}.models", stream, "model", "model: one for all requests")
        for name in names.present():
            if name not in stream.model:
                raise InvalidValueError(
                    f"{key}.models", sorted(stream.model), f"also {name!r} of the trace (or null)"
                )
    if isinstance(stream.slo, ByColumn):
        names = _needed(f"{key}.slo.by_column", stream, "slo_class", "a csv trace with such a column")
        for name in names.present():
            if name not in stream.slo.class_of:
                expected = f"also {name!r} of the trace"
                raise InvalidValueError(f"{key}.slo.by_column", sorted(stream.slo.class_of), expected)


def _needed(key: str, stream: Stream, column: Literal["model", "slo_class"], expected: str) -> Labels:
    traces: list[Trace] = []
    if isinstance(stream.arrivals, TraceTimes):
        traces.append(stream.arrivals.trace)
    if isinstance(stream.lengths, TraceLengths):
        traces.append(stream.lengths.trace)
    for trace in traces:
        labels: Labels | None = getattr(trace, column)
        if labels is not None:
            return labels
    if not traces:
        raise InvalidValueError(key, f"by the column {column}, but no trace is configured", expected)
    files = " and ".join(sorted({str(trace.path) for trace in traces}))
    raise InvalidValueError(key, f"by the column {column}, which is not in {files}", expected)
