"""Records of aiperf: `profile_export.jsonl`, a line per request.

Source: aiperf's page "Working with Profile Export Files" and its `MetricRecordMetadata` (0.13). Times of
metrics are in milliseconds. `inter_chunk_latency` has the times between chunks, and `request_start_ns` is the
time of sending; `credit_issued_ns`, if a version has it, that at which the request was due.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, NonNegativeFloat

from qlm.cli.bench.record import Run, Sent, spread
from qlm.domain.errors import InvalidValueError

_TO_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


class Metric(BaseModel):
    """A metric of a request."""

    model_config = ConfigDict(frozen=True)

    value: NonNegativeFloat | list[NonNegativeFloat]
    unit: str


class Metadata(BaseModel):
    """The used part of a record's metadata."""

    model_config = ConfigDict(frozen=True)

    request_start_ns: int
    request_end_ns: int
    credit_issued_ns: int | None = None
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False


class Failure(BaseModel):
    """Cause of a failure."""

    model_config = ConfigDict(frozen=True)

    type: str | None = None
    message: str | None = None


class AiperfRecord(BaseModel):
    """A line."""

    model_config = ConfigDict(frozen=True)

    metadata: Metadata
    metrics: dict[str, Any]
    error: Failure | None = None


def aiperf_run(path: str, records: Sequence[AiperfRecord]) -> Run:
    """Return the run of the records of one file; those of a warm-up are left out.

    Raises:
        InvalidValueError: There is no record, or one without times of its chunks.
    """
    measured = [each for each in records if each.metadata.benchmark_phase == "profiling"]
    if not measured:
        raise InvalidValueError(path, "no record of the phase profiling", "at least one")
    due = [_due_ns(each.metadata) for each in measured]
    begin_ns = min(due)
    sent = [_sent(path, each, at_ns, begin_ns) for each, at_ns in zip(measured, due, strict=True)]
    return Run(
        requests=tuple(sorted(sent, key=lambda each: each.scheduled_s)),
        counting="output_sequence_length, spread evenly over the chunks",
    )


def _due_ns(metadata: Metadata) -> int:
    due_ns = metadata.credit_issued_ns
    return metadata.request_start_ns if due_ns is None else min(due_ns, metadata.request_start_ns)


def _sent(path: str, record: AiperfRecord, due_ns: int, begin_ns: int) -> Sent:
    sent_s = (record.metadata.request_start_ns - begin_ns) / 1e9
    error = None
    if record.error is not None or record.metadata.was_cancelled:
        failure = record.error or Failure()
        error = failure.message or failure.type or "cancelled"
    return Sent(
        scheduled_s=(due_ns - begin_ns) / 1e9,
        sent_s=sent_s,
        end_s=(record.metadata.request_end_ns - begin_ns) / 1e9,
        chunks=() if error else spread(_tokens(path, record), _times_s(path, record, sent_s)),
        error=error,
        prompt_tokens=int(_values(path, record, "input_sequence_length", 0.0)[0]),
    )


def _times_s(path: str, record: AiperfRecord, sent_s: float) -> list[float]:
    first = _values(path, record, "time_to_first_token")[0]
    # An answer of one chunk has no gap.
    gaps = _values(path, record, "inter_chunk_latency", None if _tokens(path, record) > 1 else [])
    return list(accumulate(gaps, initial=sent_s + first))


def _tokens(path: str, record: AiperfRecord) -> int:
    name = "output_sequence_length" if "output_sequence_length" in record.metrics else "output_token_count"
    return int(_values(path, record, name)[0])


def _values(
    path: str, record: AiperfRecord, name: str, default: float | list[float] | None = None
) -> list[float]:
    """Return a metric, seconds or a number; `default` if the record does not have it."""
    if name not in record.metrics:
        if default is None:
            expected = f"{name} in each record without an error: run aiperf profile with --streaming"
            raise InvalidValueError(path, "a record without it", expected)
        return default if isinstance(default, list) else [default]
    metric = Metric.model_validate(record.metrics[name])
    scale = _TO_S.get(metric.unit, 1.0)
    values = metric.value if isinstance(metric.value, list) else [metric.value]
    return [scale * each for each in values]
