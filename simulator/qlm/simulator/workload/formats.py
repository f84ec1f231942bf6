"""Readers of comma-separated traces: Azure, BurstGPT, plain lengths, and others by column names."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.simulator.prefixes import UNSHARED, PrefixIds, block_ids, prefix_numbers
from qlm.simulator.scenario import IntArray
from qlm.simulator.workload.cells import seconds, timestamps, whole_numbers, whole_numbers_or_none
from qlm.simulator.workload.csv_table import Column, Table, read_table, text
from qlm.simulator.workload.trace import Labels, Trace, dropped_times

Start = Callable[[int], int]
"""Computes the start of a trace from its first arrival, nanoseconds."""


class ZeroOutput(StrEnum):
    """Treatment of rows without output tokens; published traces contain failed requests."""

    DROP = "drop"
    REFUSE = "refuse"


CSV_COLUMNS: Final[Mapping[str, str]] = {
    "arrival_s": "arrival_s",
    "model": "model",
    "tenant": "tenant",
    "slo_class": "slo_class",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "prefix_id": "prefix_id",
    "prefix_tokens": "prefix_tokens",
}
"""Default header name by meaning of a column."""


def read_azure(path: Path, zero_output: ZeroOutput = ZeroOutput.DROP) -> Trace:
    """Read an Azure LLM inference trace, of 2023 or 2024; its first row arrives at 0.

    Source: github.com/Azure/AzurePublicDataset. TIMESTAMP has up to nine fractional digits, and in
    2024 an offset from UTC.
    """
    names = {"arrival": "TIMESTAMP", "prompt": "ContextTokens", "output": "GeneratedTokens"}
    table = read_table(path, [Column(names["arrival"], timestamps), *_lengths(names)])
    return _trace(table, names, zero_output, start=int)


def read_burstgpt(path: Path, zero_output: ZeroOutput = ZeroOutput.DROP) -> Trace:
    """Read a BurstGPT trace; other columns (Total tokens, Log Type, Session ID, ...) are ignored.

    Source: github.com/HPMLL/BurstGPT. Timestamp is in seconds since the first midnight of the
    collection; failed requests have 0 response tokens.
    """
    names = {
        "arrival": "Timestamp",
        "model": "Model",
        "prompt": "Request tokens",
        "output": "Response tokens",
    }
    columns = [Column(names["arrival"], seconds), Column(names["model"], text), *_lengths(names)]
    return _trace(read_table(path, columns), names, zero_output)


def read_lengths(path: Path, zero_output: ZeroOutput = ZeroOutput.DROP) -> Trace:
    """Read pairs of lengths without times.

    The columns are those of the traces that come with the Vidur simulator (github.com/microsoft/vidur).
    """
    names = {"prompt": "num_prefill_tokens", "output": "num_decode_tokens"}
    return _trace(read_table(path, _lengths(names)), names, zero_output)


def read_csv(
    path: Path, columns: Mapping[str, str] | None = None, zero_output: ZeroOutput = ZeroOutput.DROP
) -> Trace:
    """Read a table with given column names, such as one sampled from ServeGen.

    The trace starts at the full second of its first row. So times may count from any origin, such as 1970,
    and those that count from the start do not change.

    Args:
        path: The file.
        columns: Header names that differ from CSV_COLUMNS, by meaning. These columns must exist; otherwise
            model, tenant, class, times and prefixes are optional.
        zero_output: Treatment of rows without output tokens.
    """
    given = dict(columns or {})
    by_meaning = {**CSV_COLUMNS, **given}
    names = {"arrival": by_meaning["arrival_s"], "prompt": by_meaning["input_tokens"]}
    names |= {"output": by_meaning["output_tokens"]}
    names |= {meaning: by_meaning[meaning] for meaning in ("model", "tenant", "slo_class")}
    labels = [Column(names[m], text, m in given) for m in ("model", "tenant", "slo_class")]
    arrival = Column(names["arrival"], seconds, "arrival_s" in given)
    shared = [by_meaning[meaning] for meaning in ("prefix_id", "prefix_tokens")]
    both = "prefix_id" in given or "prefix_tokens" in given
    prefix = [Column(shared[0], list, both), Column(shared[1], whole_numbers_or_none, both)]
    table = read_table(path, [arrival, *labels, *_lengths(names), *prefix])
    ids, tokens = _prefixes(table, shared, names["prompt"])
    return _trace(table, names, zero_output, start=_full_second, prefixes=ids, prefix_tokens=tokens)


def _prefixes(table: Table, names: Sequence[str], prompt: str) -> tuple[PrefixIds, IntArray | None]:
    """Return the ids of blocks and the tokens that they cover; nothing without these columns."""
    ids, tokens = (table.columns.get(name) for name in names)
    if ids is None and tokens is None:
        return (), None
    if ids is None or tokens is None:
        missing = names[0] if ids is None else names[1]
        raise InvalidValueError(f"{table.path}:1: header", f"no {missing}", f"both {' and '.join(names)}")
    numbers = prefix_numbers(ids)
    for bad, expected in (
        (tokens > table.columns[prompt], f"at most {prompt}"),
        ((numbers == UNSHARED) & (tokens > 0), f"0 without a {names[0]}"),
    ):
        if bad.any():
            row = int(np.argmax(bad))
            raise table.refuse(row, names[1], int(tokens[row]), expected)
    return block_ids(numbers, tokens), tokens


def _full_second(first_ns: int) -> int:
    return int(first_ns) // 10**9 * 10**9


def _lengths(names: Mapping[str, str]) -> list[Column]:
    return [Column(names["prompt"], whole_numbers), Column(names["output"], whole_numbers)]


def _trace(
    table: Table,
    names: Mapping[str, str],
    zero_output: ZeroOutput,
    *,
    start: Start | None = None,
    prefixes: PrefixIds = (),
    prefix_tokens: IntArray | None = None,
) -> Trace:
    columns = table.columns
    arrival = columns.get(names.get("arrival", ""))
    if arrival is not None:
        check_rising(table, names["arrival"], arrival)
        arrival = arrival - start(arrival[0]) if start else arrival
    kept = kept_rows(table, names["prompt"], names["output"], zero_output)
    labels: dict[str, Any] = {
        meaning: Labels.of(columns[names[meaning]])
        for meaning in ("model", "tenant", "slo_class")
        if names.get(meaning) in columns
    }
    whole = Trace(
        path=table.path,
        prompt_tokens=columns[names["prompt"]],
        output_tokens=columns[names["output"]],
        arrival_ns=arrival,
        prefixes=prefixes,
        prefix_tokens=prefix_tokens,
        dropped_ns=dropped_times(arrival, kept, len(table.lines)),
        **labels,
    )
    return whole.at(kept).canonical()


def check_rising(table: Table, column: str, arrival_ns: IntArray) -> None:
    """Raise an error if times decrease.

    Raises:
        InvalidValueError: A line is earlier than the one before; names the first.
    """
    falls = np.diff(arrival_ns) < 0
    if falls.any():
        row = int(np.argmax(falls)) + 1
        back_s = float(arrival_ns[row - 1] - arrival_ns[row]) / 1e9
        shown = f"{back_s:.9g} s before line {table.lines[row - 1]}"
        raise table.refuse(row, column, shown, "times that never fall")


def kept_rows(table: Table, prompt: str, output: str, zero_output: ZeroOutput) -> IntArray:
    """Return the rows with output tokens.

    Raises:
        InvalidValueError: Such a row has an empty prompt, a row without output is refused, or no row is left.
    """
    outputs, prompts = table.columns[output], table.columns[prompt]
    empty = outputs == 0
    if empty.any() and zero_output is ZeroOutput.REFUSE:
        raise table.refuse(int(np.argmax(empty)), output, 0, "1 or more tokens (or zero_output: drop)")
    promptless = (prompts == 0) & ~empty
    if promptless.any():
        raise table.refuse(int(np.argmax(promptless)), prompt, 0, "1 or more tokens")
    kept = np.flatnonzero(~empty)
    if not len(kept):
        raise table.refuse(0, output, 0, "at least one row with 1 or more tokens")
    return kept
