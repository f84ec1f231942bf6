"""Table of the requests of an engine: columns of a `View` that the engine itself does not need."""

from math import inf
from typing import Final

import numpy as np

from qlm.agents.batching.call_objective import begin_reader
from qlm.agents.batching.readers import ReaderColumns
from qlm.agents.batching.view import NO_READER, Flags, Floats, Ints
from qlm.domain.ports.engine import CallObjective, EngineCall
from qlm.simulator.engine.host_cache import NO_COPIES, Copies
from qlm.simulator.engine.sequence import Sequence
from qlm.simulator.engine.step_time import FRACTION_BITS

_NS_PER_S: Final = 1_000_000_000

TICKS_PER_S: Final = _NS_PER_S << FRACTION_BITS
"""Ticks of the engine in a second."""


class RequestTable:
    """One row per request, reused after its end. Times are seconds since the first request.

    Attributes:
        readers: Columns of the readers, by the same rows.
        arrival_s: Arrival at QLM.
        ttft_s: As in `View`.
        rate: As in `View`.
        deadline_s: As in `View`.
        rank: As in `View`.
        prompt: Tokens of the first prompt.
        limit: Most output tokens, those of earlier generations included.
        preemptions: As in `View`.
        pinned: As in `View`.
        copies: Blocks in host memory when they were last counted.
    """

    def __init__(self) -> None:
        self.readers = ReaderColumns()
        self.arrival_s: Floats = np.zeros(0)
        self.ttft_s: Floats = np.zeros(0)
        self.rate: Floats = np.zeros(0)
        self.deadline_s: Floats = np.zeros(0)
        self.rank: Ints = np.zeros(0, np.int64)
        self.prompt: Ints = np.zeros(0, np.int64)
        self.limit: Ints = np.zeros(0, np.int64)
        self.preemptions: Ints = np.zeros(0, np.int64)
        self.pinned: Flags = np.zeros(0, np.bool_)
        self.copies: list[Copies] = []
        self._origin_ns: int | None = None
        self._free: list[int] = []

    def seconds(self, at_ns: int) -> float:
        """Return a time of the engine in seconds since the first request."""
        return (at_ns - (self._origin_ns or 0)) / _NS_PER_S

    def ticks_s(self, at_ticks: int) -> float:
        """Return a time in ticks in seconds since the first request."""
        return (at_ticks - ((self._origin_ns or 0) << FRACTION_BITS)) / TICKS_PER_S

    def nanoseconds(self, at_s: float) -> int:
        """Return the reverse of `seconds`."""
        return (self._origin_ns or 0) + round(at_s * _NS_PER_S)

    def add(self, sequence: Sequence, now_ns: int) -> None:
        """Give a request a row."""
        call = sequence.generation.call
        objective = call.objective or CallObjective(arrival_ns=now_ns)
        if self._origin_ns is None:
            self._origin_ns = now_ns
        row = sequence.row = self._take()
        self._write(row, call, objective)
        self.pinned[row], self.copies[row] = sequence.pinned, NO_COPIES
        begin_reader(self.readers, row, self.seconds(objective.arrival_ns), objective)

    def remove(self, sequence: Sequence) -> None:
        """Take the row of a request back."""
        self._free.append(sequence.row)

    def _write(self, row: int, call: EngineCall, objective: CallObjective) -> None:
        deadline_ns = objective.deadline_ns
        self.arrival_s[row] = self.seconds(objective.arrival_ns)
        self.ttft_s[row] = objective.ttft_s
        self.rate[row] = NO_READER if objective.tokens_per_s == inf else objective.tokens_per_s
        self.deadline_s[row] = inf if deadline_ns is None else self.seconds(deadline_ns)
        self.rank[row] = objective.rank
        self.prompt[row] = len(call.prompt_ids) - objective.shown
        self.limit[row] = objective.shown + call.sampling.max_tokens
        self.preemptions[row] = 0

    def _take(self) -> int:
        if not self._free:
            known = len(self.rank)
            more = max(64, known)
            for name in ("arrival_s", "ttft_s", "rate", "deadline_s"):
                setattr(self, name, np.concatenate((getattr(self, name), np.zeros(more))))
            for name in ("rank", "prompt", "limit", "preemptions"):
                setattr(self, name, np.concatenate((getattr(self, name), np.zeros(more, np.int64))))
            self.pinned = np.concatenate((self.pinned, np.zeros(more, np.bool_)))
            self.copies += [NO_COPIES] * more
            self._free = list(range(known + more - 1, known - 1, -1))
        return self._free.pop()
