"""Views of an instance for batch policies, from rows with defaults."""

from dataclasses import dataclass
from math import inf
from typing import Any, Final

import numpy as np

from qlm.agents.batching.view import NO_READER, Machine, Pace, Place, View
from qlm.domain.ids import RequestId
from qlm.rct_estimator.profiles.iteration import IterationTime

MACHINE: Final = Machine(
    iteration=IterationTime.constant(20.0),
    kv_blocks=1_000,
    free_blocks=1_000,
    block_tokens=16,
    seqs_max=64,
    batched_tokens_max=2_048,
    token_bytes=100_000,
    host_blocks=0,
    link_bytes_per_s=20e9,
    load_free_s=0.0,
    write_free_s=0.0,
)
PACE: Final = Pace(
    step_s=0.02, prompt_mean=200.0, answer_mean=100.0, answer_square_mean=20_000.0, life_s=5.0, preemptions=0,
    requests=0,
)  # fmt: skip


@dataclass
class Row:
    """One request; `blocks` None for as many as its text takes if it is inside, else 0."""

    id: str
    place: Place = Place.OUTSIDE
    arrival_s: float = 0.0
    prompt: int = 100
    generated: int = 0
    blocks: int | None = None
    host_tokens: int = 0
    preemptions: int = 0
    rate: float = NO_READER
    ttft_s: float = inf
    read_end_s: float | None = None
    late_s: float = 0.0
    late_sum_s: float = 0.0
    deadline_s: float = inf
    rank: int = 0
    pinned: bool = False
    left_mean: float = 100.0
    left_sd: float = 50.0
    left_max: float = 10_000.0

    def blocks_on(self, machine: Machine) -> int:
        if self.blocks is not None:
            return self.blocks
        inside = self.place is not Place.OUTSIDE
        return -(-(self.prompt + self.generated) // machine.block_tokens) if inside else 0


def reader(id: str, slack_s: float, place: Place = Place.OUTSIDE, **other: Any) -> Row:
    """Return a reader that has this slack at 0."""
    fields: dict[str, Any] = {
        "arrival_s": -5.0,
        "generated": 20,
        "rate": 5.0,
        "ttft_s": 1.0,
        "read_end_s": slack_s,
    }
    return Row(id, place, **(fields | other))


def view(*rows: Row, now_s: float = 0.0, machine: Machine = MACHINE, pace: Pace = PACE) -> View:
    """Return the view of an instance with these requests; free blocks are what they leave."""
    blocks = [row.blocks_on(machine) for row in rows]
    ints, floats = np.int64, np.float64
    return View(
        now_s=now_s,
        ids=tuple(RequestId(row.id) for row in rows),
        place=np.array([row.place for row in rows], ints),
        arrival_s=np.array([row.arrival_s for row in rows], floats),
        prompt=np.array([row.prompt for row in rows], ints),
        generated=np.array([row.generated for row in rows], ints),
        blocks=np.array(blocks, ints),
        host_tokens=np.array([row.host_tokens for row in rows], ints),
        preemptions=np.array([row.preemptions for row in rows], ints),
        rate=np.array([row.rate for row in rows], floats),
        ttft_s=np.array([row.ttft_s for row in rows], floats),
        read_end_s=np.array(
            [row.arrival_s if row.read_end_s is None else row.read_end_s for row in rows], floats
        ),
        late_s=np.array([row.late_s for row in rows], floats),
        late_sum_s=np.array([row.late_sum_s for row in rows], floats),
        deadline_s=np.array([row.deadline_s for row in rows], floats),
        rank=np.array([row.rank for row in rows], ints),
        pinned=np.array([row.pinned for row in rows], np.bool_),
        left_mean=np.array([row.left_mean for row in rows], floats),
        left_sd=np.array([row.left_sd for row in rows], floats),
        left_max=np.array([row.left_max for row in rows], floats),
        machine=machine._replace(free_blocks=machine.kv_blocks - sum(blocks)),
        pace=pace._replace(requests=max(pace.requests, len(rows))),
    )
