"""Records of aiperf: `profile_export.jsonl`, a line per request.

Source: aiperf's page "Working with Profile Export Files" and its `MetricRecordMetadata` (0.13). Times of
metrics are in milliseconds. `inter_chunk_latency` has the times between chunks, and `request_start_ns` is the
time of sending; `credit_issued_ns`, if a version has it, that at which the request was due.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, NonNegativeFloat, ValidationError

from qlm.cli.bench.possible import Fields, possible
from qlm.cli.bench.record import TOKENS_MAX, Run, Sent, spread
from qlm.domain.errors import InvalidValueError

_TO_S: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_TTFT: Final = "time_to_first_token"
_GAPS: Final = "inter_chunk_latency"
_PROMPT: Final = "input_sequence_length"


class Metric(BaseModel):
    """A metric of a request: its number or numbers, and their unit."""

    model_config = ConfigDict(frozen=True)

    value: Annotated[
        list[NonNegativeFloat], BeforeValidator(lambda given: given if isinstance(given, list) else [given])
    ]
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
        InvalidValueError: There is no record, one without times of its chunks, with a metric that is none, or
            with impossible times; the message names record and metric.
    """
    measured = [
        (f"{path}: {row}", each)
        for row, each in enumerate(records)
        if each.metadata.benchmark_phase == "profiling"
    ]
    if not measured:
        raise InvalidValueError(path, "no record of the phase profiling", "at least one")
    begin_ns = min(_due_ns(each.metadata) for _, each in measured)
    with_gaps = any(_GAPS in each.metrics for _, each in measured)
    sent = [possible(_sent(where, each, begin_ns, with_gaps), _fields(where)) for where, each in measured]
    return Run(
        requests=tuple(sorted(sent, key=lambda each: each.scheduled_s)),
        counting="output_sequence_length, spread evenly over the chunks",
    )


def _due_ns(metadata: Metadata) -> int:
    due_ns = metadata.credit_issued_ns
    return metadata.request_start_ns if due_ns is None else min(due_ns, metadata.request_start_ns)


def _fields(where: str) -> Fields:
    begin = f"{where}.metadata.request"
    return Fields(f"{begin}_start_ns", f"{where}.metrics.{_GAPS}", f"{begin}_end_ns")


def _sent(where: str, record: AiperfRecord, begin_ns: int, with_gaps: bool) -> Sent:
    sent_s = (record.metadata.request_start_ns - begin_ns) / 1e9
    error = None
    if record.error is not None or record.metadata.was_cancelled:
        failure = record.error or Failure()
        error = failure.message or failure.type or "cancelled"
    return Sent(
        scheduled_s=(_due_ns(record.metadata) - begin_ns) / 1e9,
        sent_s=sent_s,
        end_s=(record.metadata.request_end_ns - begin_ns) / 1e9,
        chunks=() if error else spread(_tokens(where, record), _times_s(where, record, sent_s, with_gaps)),
        error=error,
        prompt_tokens=_count(where, record, _PROMPT) if _PROMPT in record.metrics else 0,
    )


def _times_s(where: str, record: AiperfRecord, sent_s: float, with_gaps: bool) -> list[float]:
    first_s = _one(where, _TTFT, _seconds(where, record, _TTFT))
    # aiperf leaves gaps out of the record of an answer that came in one chunk; a file without any lacks them.
    one_chunk = _GAPS not in record.metrics and (with_gaps or _tokens(where, record) <= 1)
    return list(accumulate(() if one_chunk else _seconds(where, record, _GAPS), initial=sent_s + first_s))


def _tokens(where: str, record: AiperfRecord) -> int:
    name = "output_sequence_length" if "output_sequence_length" in record.metrics else "output_token_count"
    return _count(where, record, name)


def _count(where: str, record: AiperfRecord, name: str) -> int:
    number = _one(where, name, _metric(where, record, name).value)
    if number > TOKENS_MAX:
        raise InvalidValueError(f"{where}.metrics.{name}", number, f"at most {TOKENS_MAX} tokens")
    return int(number)


def _seconds(where: str, record: AiperfRecord, name: str) -> list[float]:
    metric = _metric(where, record, name)
    scale = _TO_S.get(metric.unit)
    if scale is None:
        raise InvalidValueError(f"{where}.metrics.{name}.unit", metric.unit, f"one of {', '.join(_TO_S)}")
    return [scale * each for each in metric.value]


def _one(where: str, name: str, values: Sequence[float]) -> float:
    if len(values) != 1:
        raise InvalidValueError(f"{where}.metrics.{name}.value", list(values), "one number")
    return values[0]


def _metric(where: str, record: AiperfRecord, name: str) -> Metric:
    field = f"{where}.metrics"
    if name not in record.metrics:
        expected = f"{name} in each record without an error: run aiperf profile with --streaming"
        raise InvalidValueError(field, "a record without it", expected)
    try:
        return Metric.model_validate(record.metrics[name])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, (field, name, *first["loc"])))
        raise InvalidValueError(path, first["input"], first["msg"]) from None
