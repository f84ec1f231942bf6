"""Batch policies for tests; vLLM imports them by `module:Class` and writes what they saw into a file."""

import json
import os
import random
from pathlib import Path
from typing import Final

import numpy as np

from qlm.agents.batching.decision import BatchPolicy, Decision
from qlm.agents.batching.packing import packed
from qlm.agents.batching.policies.fcfs import FirstComeFirstServed
from qlm.agents.batching.view import Place, View
from qlm.domain.ids import RequestId

REPORT_VARIABLE: Final = "QLM_TEST_POLICY_REPORT"
"""Environment variable with the file that `RandomLevers` writes its counts into."""

FCFS, RANDOM, ROTATION, HOLD_FIRST = range(4)
"""Ranks by which a request asks for one of the policies of `ByRank`."""


class RandomLevers:
    """Preempt and hold requests at random, by a seed, and count what came of it."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)
        self._before: dict[str, tuple[int, int]] = {}
        self._parked: set[RequestId] = set()
        self._held: set[RequestId] = set()
        self._counts = {"preempted": 0, "held": 0, "in_flight": 0, "moved": 0}

    def decide(self, view: View) -> Decision:
        self._count(view)
        order = sorted(range(len(view.ids)), key=lambda row: view.arrival_s[row])
        inside = [row for row in order if view.inside[row] and view.generated[row]]
        drawn = self._random.sample(inside, min(len(inside), 2))
        # vLLM may need an iteration to preempt: until then, a parked request stays so.
        parked = {row for row in inside if view.ids[row] in self._parked}
        parked |= set(drawn[:1] if self._random.random() < 0.5 else [])
        self._parked = {view.ids[row] for row in parked}
        skipped = drawn[1:] if len(inside) > 2 else []
        return Decision(
            run=tuple(view.ids[row] for row in order if row not in parked),
            hold=frozenset(view.ids[row] for row in skipped),
            again_s=view.now_s + 0.01,
        )

    def _count(self, view: View) -> None:
        """Count preemptions, held requests, and the tokens that held requests got nevertheless.

        With asynchronous scheduling, an iteration is in flight when a hold begins: its token still comes.
        """
        for row, id in enumerate(view.ids):
            preemptions, generated = self._before.get(id, (0, 0))
            self._counts["preempted"] += int(view.preemptions[row]) - preemptions
            if view.place[row] == Place.HELD:
                self._counts["held"] += 1
                tokens = int(view.generated[row]) - generated
                in_flight = 0 if id in self._held else min(tokens, 1)
                self._counts["in_flight"] += in_flight
                self._counts["moved"] += tokens - in_flight
        self._before = {
            id: (int(view.preemptions[row]), int(view.generated[row])) for row, id in enumerate(view.ids)
        }
        self._held = {id for row, id in enumerate(view.ids) if view.place[row] == Place.HELD}
        if file := os.environ.get(REPORT_VARIABLE):
            fresh = Path(f"{file}.new")
            fresh.write_text(json.dumps(self._counts))
            fresh.replace(file)

    def room(self, view: View) -> int:
        return view.machine.seqs_max


class Rotation:
    """Run those whose readers have the least left to read, for some iterations at a time."""

    quantum_steps = 16

    def decide(self, view: View) -> Decision:
        order = np.argsort(view.read_end_s, kind="stable").tolist()
        return Decision(run=packed(view, order), again_s=view.now_s + self.quantum_steps * view.pace.step_s)

    def room(self, view: View) -> int:
        return view.machine.seqs_max


class HoldFirst:
    """Hold the first to come, and park the others."""

    def decide(self, view: View) -> Decision:
        first = view.ids[int(np.argmin(view.arrival_s))]
        return Decision(run=(first,), hold=frozenset({first}))

    def room(self, view: View) -> int:
        return view.machine.seqs_max


class ByRank:
    """The policy that the requests ask for by their rank: one engine for all tests."""

    def __init__(self) -> None:
        self._policies: dict[int, BatchPolicy] = {
            FCFS: FirstComeFirstServed(),
            RANDOM: RandomLevers(),
            ROTATION: Rotation(),
            HOLD_FIRST: HoldFirst(),
        }

    def decide(self, view: View) -> Decision:
        return self._policies[int(view.rank.max())].decide(view)

    def room(self, view: View) -> int:
        return view.machine.seqs_max
