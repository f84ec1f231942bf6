"""Reader of Mooncake traces: JSON lines with shared prompt blocks."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from qlm.domain.errors import InvalidValueError
from qlm.simulator.engine.generation import PREFIX_TOKENS
from qlm.simulator.scenario import IntArray
from qlm.simulator.workload.cells import LENGTH_TOKENS_MAX, TIME_MAX_S, WHOLE_EXPECTED, scaled_times
from qlm.simulator.workload.csv_table import Table, not_utf8, open_text
from qlm.simulator.workload.formats import ZeroOutput, check_rising, kept_rows
from qlm.simulator.workload.trace import Trace, dropped_times

_KEYS: Final = ("timestamp", "input_length", "output_length", "hash_ids")
_TIME_EXPECTED: Final = f"a number of milliseconds from 0 to {1000 * TIME_MAX_S:g}"


def read_mooncake(path: Path, zero_output: ZeroOutput = ZeroOutput.DROP) -> Trace:
    """Read a Mooncake trace.

    Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces. Each line has a timestamp in milliseconds,
    lengths in tokens, and `hash_ids`: one id per block of 512 prompt tokens, the last of which may be
    partial. Equal ids mean equal content.

    Raises:
        InvalidValueError: A line is not such an object; names file, line and key.
    """
    rows, numbers = _rows(path)
    times_ms = np.array([row["timestamp"] for row in rows], dtype=np.float64)
    arrival_ns = scaled_times(times_ms, 1e6, _TIME_EXPECTED)
    columns = {key: _lengths(rows, key) for key in ("input_length", "output_length")}
    table = Table(path, np.array(numbers, dtype=np.int64), columns)
    check_rising(table, "timestamp", arrival_ns)
    kept = kept_rows(table, "input_length", "output_length", zero_output)
    whole = Trace(
        path=path,
        prompt_tokens=columns["input_length"],
        output_tokens=columns["output_length"],
        arrival_ns=arrival_ns,
        prefixes=tuple(tuple(row["hash_ids"]) for row in rows),
        dropped_ns=dropped_times(arrival_ns, kept, len(rows)),
    )
    return whole.at(kept).canonical()


def _rows(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    rows, numbers = [], []
    with open_text(path) as file:
        try:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_row(f"{path}:{number}", line))
                    numbers.append(number)
        except UnicodeDecodeError:
            raise not_utf8(path) from None
    if not rows:
        raise InvalidValueError(str(path), "empty", "JSON objects, one per line")
    return rows, numbers


def _row(where: str, line: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise InvalidValueError(where, line.strip(), "one whole JSON object") from None
    if not isinstance(row, dict):
        raise InvalidValueError(where, row, "a JSON object")
    for key in _KEYS:
        if key not in row:
            raise InvalidValueError(where, sorted(row), f"also the key {key}")
    time = row["timestamp"]
    if type(time) not in (int, float) or not 0 <= time <= 1000 * TIME_MAX_S:
        raise InvalidValueError(f"{where}: timestamp", time, _TIME_EXPECTED)
    for key in ("input_length", "output_length"):
        if type(row[key]) is not int or not 0 <= row[key] <= LENGTH_TOKENS_MAX:
            raise InvalidValueError(f"{where}: {key}", row[key], WHOLE_EXPECTED)
    _check_blocks(where, row)
    return row


def _check_blocks(where: str, row: dict[str, Any]) -> None:
    ids = row["hash_ids"]
    if not isinstance(ids, list) or any(type(each) is not int or each < 0 for each in ids):
        raise InvalidValueError(f"{where}: hash_ids", ids, "a list of whole numbers, 0 or more")
    blocks_max = -(-row["input_length"] // PREFIX_TOKENS)
    if len(ids) > blocks_max:
        expected = f"at most {blocks_max} for {row['input_length']} tokens in blocks of {PREFIX_TOKENS}"
        raise InvalidValueError(f"{where}: hash_ids", f"{len(ids)} ids", expected)


def _lengths(rows: list[dict[str, Any]], key: str) -> IntArray:
    return np.array([row[key] for row in rows], dtype=np.int64)
