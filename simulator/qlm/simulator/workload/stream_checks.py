"""What can be wrong between the rules of a stream and its traces, found before anything is drawn."""

from typing import Literal

from qlm.domain.errors import InvalidValueError
from qlm.simulator.workload.slo_rules import ByColumn
from qlm.simulator.workload.stream import Stream, TraceLengths, TraceTimes
from qlm.simulator.workload.trace import Labels, Trace


def check_stream(stream: Stream) -> None:
    """Refuse a stream whose traces lack what its rules need.

    Raises:
        InvalidValueError: No times, model names or class names where they are needed, or a name that
            the rules do not list; names stream, key and file.
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
                    f"{key}.models", sorted(stream.model), f"{name!r} of the trace, too (or null)"
                )
    if isinstance(stream.slo, ByColumn):
        names = _needed(f"{key}.slo.by_column", stream, "slo_class", "a csv trace with such a column")
        for name in names.present():
            if name not in stream.slo.class_of:
                expected = f"{name!r} of the trace, too"
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
    files = " and ".join(sorted({str(trace.path) for trace in traces})) or "any trace, since there is none"
    raise InvalidValueError(key, f"by the column {column}, which is not in {files}", expected)
