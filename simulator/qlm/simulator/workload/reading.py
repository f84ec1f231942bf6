"""One entry to all trace formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from qlm.domain.errors import InvalidValueError
from qlm.simulator.workload.formats import ZeroOutput, read_azure, read_burstgpt, read_csv, read_lengths
from qlm.simulator.workload.mooncake import read_mooncake
from qlm.simulator.workload.sharegpt import read_sharegpt
from qlm.simulator.workload.trace import Trace


class TraceFormat(StrEnum):
    """Formats in which traces are published."""

    AZURE = "azure"
    BURSTGPT = "burstgpt"
    MOONCAKE = "mooncake"
    SHAREGPT = "sharegpt"
    LENGTHS = "lengths"
    CSV = "csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """Where a trace is, and how to read it.

    Attributes:
        path: The file.
        format: Its format.
        columns: For csv, names of columns that differ from the usual ones (`formats.CSV_COLUMNS`).
        zero_output: What becomes of rows for which nothing was generated.
        tokenizer: For sharegpt, the tokenizer.json that counts tokens.
        from_s: Start of the part that is used, seconds of the trace.
        duration_s: Its length; None for all that is left.
    """

    path: Path
    format: TraceFormat
    columns: Mapping[str, str] = field(default_factory=dict)
    zero_output: ZeroOutput = ZeroOutput.DROP
    tokenizer: Path | None = None
    from_s: float = 0.0
    duration_s: float | None = None


def read_trace(source: TraceSource) -> Trace:
    """Read a trace, or the part of it that is used.

    Raises:
        InvalidValueError: The file is not as its format says; names file, line and column.
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
