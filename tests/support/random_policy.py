"""A batch policy that decides by chance, and checks each view that it gets."""

import random

import numpy as np

from qlm.agents.batching.decision import Decision
from qlm.agents.batching.view import Place, View
from qlm.domain.ids import RequestId


class RandomPolicy:
    """Any order of any subset, holds and recomputations; equal seeds and views give equal decisions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._now_s = -1.0
        self.views: list[View] = []

    def decide(self, view: View) -> Decision:
        check(view)
        assert view.now_s >= self._now_s
        self._now_s = view.now_s
        self.views.append(view)
        draw = self._random
        wanted, on_hold = draw.choice([0.3, 0.7, 1.0]), draw.choice([0.0, 0.2])
        run = [id for id in view.ids if draw.random() < wanted]
        if draw.random() < 0.7:
            draw.shuffle(run)
        return Decision(
            run=(*run, RequestId("ended long ago")),
            hold=frozenset(id for id in view.ids if draw.random() < on_hold),
            recompute=frozenset(id for id in view.ids if draw.random() < 0.2),
            skips=draw.random() < 0.5,
            again_s=view.now_s + draw.choice([0.0, 0.001, 0.02, 0.5]) if draw.random() < 0.7 else None,
        )

    def room(self, view: View) -> int:
        return max(0, 8 - len(view.ids))


def check(view: View) -> None:
    """Check what holds in each view of a host."""
    machine, inside = view.machine, view.inside
    assert len(set(view.ids)) == len(view.ids) > 0
    assert all(len(column) == len(view.ids) for column in view if isinstance(column, np.ndarray))
    running = np.isin(view.place, (Place.INSIDE, Place.HELD))
    assert running.sum() <= machine.seqs_max
    assert np.all(view.blocks[~inside] == 0)
    assert np.all(view.blocks[inside] > 0)
    assert 0 <= machine.free_blocks <= machine.kv_blocks
    if machine.write_free_s <= view.now_s:  # else who has left may still have blocks
        assert machine.kv_blocks - machine.free_blocks <= view.blocks.sum(), "shared blocks count once"
    assert np.all(view.blocks * machine.block_tokens >= view.tokens * inside - 1)
    assert np.all(view.host_tokens <= view.tokens)
    assert np.all(view.late_s >= 0)
    assert np.all(view.late_sum_s <= view.late_s * view.generated + 1e-6)
    assert np.all(view.left_mean >= 1)
    assert np.all(view.left_max >= view.left_mean)
    assert np.all(view.left_sd >= 1)
    assert np.all(view.read_end_s >= view.arrival_s)
