"""Reader of all trace formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qlm.domain.errors import InvalidValueError
from qlm.simulator.workload.formats import ZeroOutput, read_azure, read_burstgpt, read_csv, read_lengths
from qlm.simulator.workload.mooncake import read_mooncake
from qlm.simulator.workload.sharegpt import read_sharegpt
from qlm.simulator.workload.trace import Trace
from qlm.simulator.workload.trace_format import TraceFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """Location and format of a trace.

    Attributes:
        columns: For csv, column names that differ from `formats.CSV_COLUMNS`.
        zero_output: Treatment of rows without output tokens.
        tokenizer: For sharegpt, the tokenizer.json that counts tokens.
        from_s: Start of the used part, seconds of the trace.
        duration_s: Length of the used part; None for the rest.
    """

    path: Path
    format: TraceFormat
    columns: Mapping[str, str] = field(default_factory=dict)
    zero_output: ZeroOutput = ZeroOutput.DROP
    tokenizer: Path | None = None
    from_s: float = 0.0
    duration_s: float | None = None


def read_trace(source: TraceSource) -> Trace:
    """Read the used part of a trace.

    Raises:
        InvalidValueError: The file does not have its format; names file, line and column.
    """
    trace = _read(source)
    if source.from_s == 0 and source.duration_s is None:
        return trace
    return trace.window(source.from_s, source.duration_s)


def _read(source: TraceSource) -> Trace:
    match source.format:
        case TraceFormat.AZURE:
            return read_azure(source.path, source.zero_output)
        case TraceFormat.BURSTGPT:
            return read_burstgpt(source.path, source.zero_output)
        case TraceFormat.MOONCAKE:
            return read_mooncake(source.path, source.zero_output)
        case TraceFormat.LENGTHS:
            return read_lengths(source.path, source.zero_output)
        case TraceFormat.CSV:
            return read_csv(source.path, source.columns, source.zero_output)
        case TraceFormat.SHAREGPT:
            if source.tokenizer is None:
                raise InvalidValueError("tokenizer", None, "a tokenizer.json: sharegpt is text, not lengths")
            return read_sharegpt(source.path, source.tokenizer, source.zero_output)
