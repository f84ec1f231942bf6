"""The rule of host memory in compiled code; `qlm.rct_estimator.host_memory` has it in words.

What sleeps on an instance is a row of entries, least recently used first: twice the model, plus 1 if it
sleeps without weights. Behind the last one comes `EMPTY`.
"""

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qlm.planner.arrays import COLD, Bools, Floats, Ints, ProblemArrays, row_major
from qlm.planner.compiling.compiled import compiled

Rows = NDArray[np.int16]

EMPTY: Final = -1

BITS_MAX: Final = 62
"""Most models whose numbers are bits of one integer."""


class Memory(NamedTuple):
    """Host memory of K kinds, for M models.

    Attributes:
        size_bytes: Memory for all that sleeps; (K,).
        holds_bytes: Memory of each model asleep, by tier; (K, M, 2).
        saves_s: Time that its sleep saves against a cold start, by tier; (K, M, 2).
        takes_s: Time until it serves, by tier; (K, M, 3).
    """

    size_bytes: Ints
    holds_bytes: Ints
    saves_s: Floats
    takes_s: Floats


def memory_of(arrays: ProblemArrays, models: Ints) -> Memory:
    """Write the costs of some models for compiled code."""
    takes_s = arrays.takes_s[:, models]
    saves_s = np.maximum(0.0, takes_s[:, :, COLD:] - takes_s[:, :, :COLD])
    return row_major(Memory(arrays.host_memory_bytes, arrays.holds_bytes[:, models], saves_s, takes_s))


def of_kind(memory: Memory, kind: int) -> Memory:
    """Return the memory of one kind alone."""
    only = slice(kind, kind + 1)
    return row_major(
        Memory(
            size_bytes=memory.size_bytes[only],
            holds_bytes=memory.holds_bytes[only],
            saves_s=memory.saves_s[only],
            takes_s=memory.takes_s[only],
        )
    )


def first_rows(arrays: ProblemArrays, number: Ints, size: int) -> Rows:
    """Return what sleeps on each instance now; (I, size).

    Args:
        arrays: The problem.
        number: Number of each model of the problem in the rows; (M,).
        size: Most entries of a row.
    """
    rows = np.full((len(arrays.asleep), size), EMPTY, dtype=np.int16)
    for at, entries in enumerate(arrays.asleep):
        rows[at, : len(entries)] = [2 * number[model] + tier for model, tier in entries]
    return rows


def row_size(arrays: ProblemArrays, memory: Memory) -> int:
    """Return the most models that can ever sleep on one instance; at least 1."""
    most = max((len(entries) for entries in arrays.asleep), default=0)
    for kind in np.unique(arrays.kind):
        sleeps = memory.saves_s[kind].max(axis=1) > 0
        bytes_ = np.cumsum(np.sort(memory.holds_bytes[kind, sleeps].min(axis=1)))
        most = max(most, int(np.searchsorted(bytes_, memory.size_bytes[kind], side="right")))
    return max(1, most)


def always_fits(memory: Memory, kind: int, models: Bools) -> bool:
    """Return True if these models fit into host memory all together: none is ever evicted; (M,)."""
    return bool(memory.holds_bytes[kind, models].max(axis=1).sum() <= memory.size_bytes[kind])


def all_fits(memory: Memory) -> Bools:
    """Return for each kind if all models fit into host memory together, and their numbers into 62 bits."""
    kinds, models = memory.holds_bytes.shape[:2]
    if models > BITS_MAX:
        return np.zeros(kinds, dtype=np.bool_)
    every = np.ones(models, dtype=np.bool_)
    return np.array([always_fits(memory, kind, every) for kind in range(kinds)], dtype=np.bool_)


def tiers_at_first(arrays: ProblemArrays, number: Ints, models: int) -> Ints:
    """Return the tier in which each model sleeps on each instance now, `COLD` for not at all; (I, models)."""
    tiers = np.full((len(arrays.asleep), models), COLD, dtype=np.int64)
    for at, entries in enumerate(arrays.asleep):
        for model, tier in entries:
            tiers[at, number[model]] = tier
    return tiers


def tiers_if_fits(memory: Memory) -> Ints:
    """Return the tier in which `swap_models` puts each model to sleep where all fit; (K, M)."""
    best = memory.saves_s.argmax(axis=2)
    return np.where(memory.saves_s.max(axis=2) > 0.0, best, COLD).astype(np.int64)


@compiled()
def tier_of(rows: Rows, one: int, at: int, model: int) -> int:
    """Return the tier of a model that is not awake, by a row; (any, any, size)."""
    for place in range(rows.shape[2]):
        entry = rows[one, at, place]
        if entry < 0:
            break
        if entry >> 1 == model:
            return int(entry & 1)
    return COLD


@compiled()
def copy_row(source: Rows, one: int, at: int, target: Rows, other: int, to: int) -> None:
    """Copy a row."""
    for place in range(source.shape[2]):
        entry = source[one, at, place]
        target[other, to, place] = entry
        if entry < 0:
            break


@compiled()
def equal_rows(rows: Rows, one: int, at: int, other: int) -> bool:
    """Return True if two rows of one block are equal."""
    for place in range(rows.shape[2]):
        if rows[one, at, place] != rows[one, other, place]:
            return False
        if rows[one, at, place] < 0:
            break
    return True


@compiled()
def swap_models(memory: Memory, rows: Rows, one: int, at: int, kind: int, old: int, new: int) -> None:
    """Put a model to sleep and wake another, in place, as `asleep_after` does.

    Args:
        memory: The costs.
        rows: What sleeps; (any, any, size).
        one: First index of the row.
        at: Second index of the row.
        kind: Kind of the instance.
        old: The model that goes to sleep; -1 for none.
        new: The model that wakes; it is not evicted.
    """
    used_bytes, count = 0, 0
    while count < rows.shape[2] and rows[one, at, count] >= 0:
        entry = rows[one, at, count]
        used_bytes += memory.holds_bytes[kind, entry >> 1, entry & 1]
        count += 1
    best, best_s, evicted = COLD, 0.0, 0
    for tier in range(COLD if old >= 0 else 0):
        left_bytes = used_bytes + memory.holds_bytes[kind, old, tier] - memory.size_bytes[kind]
        gain_s, upto = memory.saves_s[kind, old, tier], 0
        while left_bytes > 0 and upto < count and gain_s > best_s:
            entry = rows[one, at, upto]
            if entry >> 1 != new:
                left_bytes -= memory.holds_bytes[kind, entry >> 1, entry & 1]
                gain_s -= memory.saves_s[kind, entry >> 1, entry & 1] * math.ldexp(1.0, upto - count)
            upto += 1
        if left_bytes <= 0 and gain_s > best_s:
            best, best_s, evicted = tier, gain_s, upto
    kept = 0
    for place in range(count):
        entry = rows[one, at, place]
        if entry >> 1 != new and place >= evicted:
            rows[one, at, kept] = entry
            kept += 1
    if best != COLD:
        rows[one, at, kept] = 2 * old + best
        kept += 1
    if kept < rows.shape[2]:
        rows[one, at, kept] = EMPTY
