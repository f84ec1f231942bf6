"""Reader of per-request logs of an engine: CSV with a header, or JSON lines."""

import csv
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.evaluation.request_log import RequestLog
from qlm.simulator.prefixes import UNSHARED, prefix_numbers
from qlm.simulator.scenario import IntArray
from qlm.simulator.workload.cells import (
    BadCellError,
    seconds,
    timestamps,
    whole_numbers,
    whole_numbers_or_none,
)
from qlm.simulator.workload.csv_table import Column, Convert, Table, not_utf8, open_text, read_table, text
from qlm.simulator.workload.trace import Labels

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "arrival": ("arrival_s", "arrival", "arrival_time", "start_s", "start_time", "sent_s", "timestamp"),
    "prompt": ("prompt_tokens", "input_tokens", "input_length", "input_len", "prompt_len"),
    "output": ("output_tokens", "answer_tokens", "completion_tokens", "output_length", "output_len"),
    "first": ("first_token_s", "first_token", "first_token_time"),
    "ttft": ("ttft_s", "ttft"),
    "end": ("end_s", "end", "end_time", "completion_s", "finish_time"),
    "e2e": ("e2e_s", "e2e", "latency_s", "latency"),
    "level": ("load", "level", "load_level", "rate", "rate_rps", "request_rate", "rps", "qps"),
    "prefix": ("prefix_id", "prefix"),
    "prefix_tokens": ("prefix_tokens", "prefix_length", "prefix_len"),
}
"""Names of each column; of several in one log the first here counts."""

_NAMED_LOG: Final = re.compile(r"log (?:(?!log |\(SHA-256 ).)+ \(SHA-256 [0-9a-f]{64}\)")
_TIMES: Final = ("arrival", "first", "end")
_NEEDED: Final = (("arrival",), ("prompt",), ("output",), ("first", "ttft"), ("end", "e2e"))


def read_request_log(path: Path) -> RequestLog:
    """Read the log of requests that one engine has answered.

    Columns are named as in NAMES; others are ignored. Times are seconds from any origin, or dates with times,
    alike in all columns; `ttft_s` and `e2e_s` are seconds since the arrival. Load levels and prefixes may be
    missing.

    Raises:
        InvalidValueError: The file cannot be read, lacks a column, or holds a bad value; names the line.
    """
    names, table = _json_lines(path) if _starts_with_object(path) else _csv(path)
    columns = {meaning: table.columns[name] for meaning, name in names.items()}
    times = _times_like(columns["arrival"][0])
    numbers: dict[str, IntArray] = {}
    for meaning, cells in columns.items():
        if convert := _converter(meaning, times):
            numbers[meaning] = _converted(table, names[meaning], cells, convert)
    arrival = numbers["arrival"]
    order = np.argsort(arrival, kind="stable")
    level, prefix = columns.get("level"), columns.get("prefix")
    if level is not None:
        _converted(table, names["level"], level, text)
    none = np.zeros(len(arrival), dtype=np.int64)
    start_ns = arrival[order[0]]
    first = numbers["first"] if "first" in numbers else arrival + numbers["ttft"]
    end = numbers["end"] if "end" in numbers else arrival + numbers["e2e"]
    return RequestLog(
        name=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        lines=table.lines[order],
        arrival_ns=(arrival - start_ns)[order],
        prompt_tokens=numbers["prompt"][order],
        output_tokens=numbers["output"][order],
        first_token_ns=(first - start_ns)[order],
        end_ns=(end - start_ns)[order],
        level=None if level is None else Labels.of(level).at(order),
        prefix=(none + UNSHARED if prefix is None else prefix_numbers(prefix))[order],
        prefix_tokens=numbers.get("prefix_tokens", none)[order],
    )


def log_source_text(log: RequestLog) -> str:
    """Return how a source of a profile names the log that it was fitted to."""
    return f"log {log.name} (SHA-256 {log.sha256})"


def logs_of(profile: Profile) -> tuple[str, ...]:
    """List the logs that sources of a profile name, as `log_source_text` does, each once."""
    found = (each for source in profile.sources.values() for each in _NAMED_LOG.findall(source.text))
    return tuple(dict.fromkeys(found))


def fitted_to(profile: Profile, log: RequestLog) -> tuple[str, ...]:
    """List the numbers of a profile whose source names this log, by its digest or its file name."""
    marks = log.sha256, f"log {log.name} "
    return tuple(name for name, source in profile.sources.items() if any(m in source.text for m in marks))


def _starts_with_object(path: Path) -> bool:
    with open_text(path) as file:
        try:
            return next((line for line in file if line.strip()), "").lstrip().startswith("{")
        except UnicodeDecodeError:
            raise not_utf8(path) from None


def _csv(path: Path) -> tuple[dict[str, str], Table]:
    with open_text(path) as file:
        try:
            header = [name.strip() for name in next((row for row in csv.reader(file) if row), [])]
        except UnicodeDecodeError:
            raise not_utf8(path) from None
        except csv.Error as error:
            raise InvalidValueError(f"{path}:1", str(error), "comma-separated values") from None
    names = _names(path, header)
    return names, read_table(path, [Column(name, list) for name in names.values()])


def _json_lines(path: Path) -> tuple[dict[str, str], Table]:
    numbers: list[int] = []
    rows: list[dict[str, Any]] = []
    with open_text(path) as file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    numbers.append(number)
                    rows.append(_object(f"{path}:{number}", line))
        except UnicodeDecodeError:
            raise not_utf8(path) from None
    names = _names(path, list(dict.fromkeys(key for row in rows for key in row)))
    columns = {
        name: [_cell(f"{path}:{at}", meaning, name, row) for at, row in zip(numbers, rows, strict=True)]
        for meaning, name in names.items()
    }
    return names, Table(path, np.array(numbers, dtype=np.int64), columns)


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise InvalidValueError(where, line.strip(), "one whole JSON object") from None
    if not isinstance(row, dict):
        raise InvalidValueError(where, row, "a JSON object")
    return row


def _cell(where: str, meaning: str, name: str, row: Mapping[str, Any]) -> str:
    """Return a value as a CSV file would hold it."""
    value = row.get(name)
    if value is None and meaning in ("prefix", "prefix_tokens"):
        return ""
    if type(value) not in (int, float, str):
        raise InvalidValueError(f"{where}: {name}", value, "a number or text")
    return value if isinstance(value, str) else repr(value)


def _names(path: Path, header: Sequence[str]) -> dict[str, str]:
    """Return the name in the header by meaning."""
    found = {
        meaning: next(name for name in names if name in header)
        for meaning, names in NAMES.items()
        if any(name in header for name in names)
    }
    where = f"{path}:1: header"
    for needed in _NEEDED:
        if not any(meaning in found for meaning in needed):
            expected = " or ".join(NAMES[meaning][0] for meaning in needed)
            raise InvalidValueError(where, ",".join(header), f"also a column {expected}")
    if ("prefix" in found) != ("prefix_tokens" in found):
        raise InvalidValueError(where, ",".join(header), "both or none of prefix_id and prefix_tokens")
    return found


def _times_like(cell: str) -> Convert:
    """Return the reader of times written as this one: dates with times, or seconds."""
    try:
        timestamps([cell])
    except BadCellError:
        return seconds
    return timestamps


def _converter(meaning: str, times: Convert) -> Convert | None:
    if meaning in _TIMES:
        return times
    if meaning in ("ttft", "e2e"):
        return seconds
    if meaning in ("prompt", "output"):
        return whole_numbers
    return whole_numbers_or_none if meaning == "prefix_tokens" else None


def _converted(table: Table, name: str, cells: Sequence[str], convert: Convert) -> Any:
    try:
        return convert(cells)
    except BadCellError as error:
        raise table.refuse(error.index, name, cells[error.index], error.expected) from None
