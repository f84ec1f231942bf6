"""A small engine, played iteration by iteration, that does what a batch policy decides.

Made for toy examples that can be worked by hand: with `constant(step_s)` each iteration takes the same time
and computes any prompt, with blocks of one token. Prompts are computed after the decodes, from the iteration
that admits them on, as far as `batched_tokens_max` allows.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

import numpy as np

from qlm.agents.batching.decision import BatchPolicy, Decision
from qlm.agents.batching.view import Machine, Pace, Place, View
from qlm.domain.ids import RequestId
from qlm.rct_estimator.profiles.iteration import IterationTime, pairs_of
from support.batch_jobs import Job, Played, row_of
from support.batch_views import MACHINE, view

STEPS_MAX: Final = 100_000
"""Steps after which a run counts as one whose requests starve."""


def constant(step_s: float, *, kv_tokens: int, seqs_max: int = 64) -> Machine:
    """Return an engine whose iterations take `step_s`, with blocks of one token."""
    return MACHINE._replace(
        iteration=IterationTime.constant(1000 * step_s),
        kv_blocks=kv_tokens,
        free_blocks=kv_tokens,
        block_tokens=1,
        seqs_max=seqs_max,
        batched_tokens_max=1_000_000,
    )


class ToyEngine:
    """One run of a policy.

    Attributes:
        now_s: Time.
        steps: Iterations so far, and times at which there was nothing to compute.
        played: All requests by id, in order of arrival.
        decisions: Each decision with its time.
        forced: Preemptions because blocks ran out.
    """

    def __init__(self, policy: BatchPolicy, machine: Machine, jobs: Sequence[Job], *, pace: Pace) -> None:
        self.now_s = 0.0
        self.steps = 0
        self.played = {job.id: Played(job) for job in sorted(jobs, key=lambda job: job.arrival_s)}
        self.decisions: list[tuple[float, Decision]] = []
        self._policy, self._machine, self._prior = policy, machine, pace
        self._run: list[str] = []
        self._skips = False
        self._hold: frozenset[RequestId] = frozenset()
        self._again_s: float | None = None
        self._coming = list(self.played.values())[::-1]
        self._present: list[Played] = []
        self._prompts: list[int] = []
        self._load_free_s = 0.0
        self._step_s = 0.0
        self._lives_s: list[float] = []
        self._answers: list[int] = []
        self._preempted = 0
        self.forced = 0
        self._stale = False

    def play(
        self, until_s: float = inf, *, watch: Callable[["ToyEngine"], None] | None = None
    ) -> "ToyEngine":
        """Go on until all have ended, or until a time; `watch` is called after each iteration."""
        while self.now_s < until_s - 1e-9 and (self._coming or self._present):
            self._arrivals()
            if self._stale or (self._again_s is not None and self.now_s >= self._again_s - 1e-9):
                self._decide()
            self._admit()
            self._iterate()
            self.steps += 1
            if watch is not None:
                watch(self)
        return self

    def view(self) -> View:
        """Return the engine as the policy sees it."""
        answer = self._answer_mean()
        rows = [row_of(each, self._place(each), answer) for each in self._present]
        shown = view(*rows, now_s=self.now_s, machine=self._machine, pace=self._pace())
        blocks = np.array([self._blocks(each) for each in self._present], np.int64)
        free = self._machine.kv_blocks - int(blocks.sum())
        machine = self._machine._replace(free_blocks=free, load_free_s=self._load_free_s)
        return shown._replace(blocks=blocks, machine=machine)

    def _place(self, each: Played) -> Place:
        return Place.HELD if each.place is Place.INSIDE and each.job.id in self._hold else each.place

    def _pace(self) -> Pace:
        ended = len(self._answers)
        return self._prior._replace(
            step_s=self._step_s,
            prompt_mean=float(np.mean(self._prompts or [0])),
            answer_mean=self._answer_mean(),
            answer_square_mean=float(np.mean(np.square(self._answers)))
            if ended
            else self._prior.answer_square_mean,
            life_s=float(np.mean(self._lives_s)) if ended else 0.0,
            preemptions=self._preempted - self.forced,
            requests=len(self._prompts),
        )

    def _answer_mean(self) -> float:
        return float(np.mean(self._answers)) if self._answers else self._prior.answer_mean

    def _blocks(self, each: Played) -> int:
        return 0 if each.place is Place.OUTSIDE else -(-(each.text + 1) // self._machine.block_tokens)

    def _free(self) -> int:
        return self._machine.kv_blocks - sum(self._blocks(each) for each in self._present)

    def _arrivals(self) -> None:
        if self._coming and not self._present:
            self.now_s = max(self.now_s, self._coming[-1].job.arrival_s)
        while self._coming and self._coming[-1].job.arrival_s <= self.now_s + 1e-9:
            self._present.append(self._coming.pop())
            self._prompts.append(self._present[-1].job.prompt)
            self._stale = True

    def _decide(self) -> None:
        decision = self._policy.decide(self.view())
        self.decisions.append((self.now_s, decision))
        self._stale = False
        self._run, self._skips, self._hold = list(decision.run), decision.skips, decision.hold
        self._again_s = decision.again_s
        for each in self._present:
            if each.place is not Place.OUTSIDE and each.job.id not in self._run:
                self._preempt(each)
            elif each.job.id in decision.recompute and each.place is Place.OUTSIDE:
                each.host_tokens = 0

    def _preempt(self, each: Played) -> None:
        each.place, each.preemptions = Place.OUTSIDE, each.preemptions + 1
        each.host_tokens = each.computed if self._machine.host_blocks else 0
        each.computed = 0
        self._preempted += 1

    def _admit(self) -> None:
        for each in self._present:
            if each.place is Place.LOADING and each.loaded_s <= self.now_s + 1e-9:
                each.place = Place.INSIDE
        free = self._free()
        slots = self._machine.seqs_max - sum(each.place is not Place.OUTSIDE for each in self._present)
        for name in self._run:
            each = self.played[name]
            if each.ended or each.place is not Place.OUTSIDE:
                continue
            need = -(-(each.text + 1) // self._machine.block_tokens)
            if need > free or not slots:
                if self._skips:
                    continue
                break
            free, slots = free - need, slots - 1
            self._bring(each)

    def _bring(self, each: Played) -> None:
        each.place, each.computed = Place.INSIDE, each.host_tokens
        if each.host_tokens:
            takes_s = each.host_tokens * self._machine.token_bytes / self._machine.link_bytes_per_s
            each.loaded_s = self._load_free_s = max(self.now_s, self._load_free_s) + takes_s
            each.place = Place.LOADING

    def _iterate(self) -> None:
        """Compute one iteration: decodes first, then prompts in order of admission as far as it may."""
        self._shrink()
        self._check()
        running = [
            each for each in self._present if each.place is Place.INSIDE and each.job.id not in self._hold
        ]
        decodes = [each for each in running if each.decodes]
        prompts = sorted((each for each in running if not each.decodes), key=self._rank)
        left, chunks = self._machine.batched_tokens_max - len(decodes), []
        for each in prompts:
            chunk = min(left, each.text - each.computed)
            if chunk > 0:
                chunks.append((each, chunk))
                left -= chunk
        if not decodes and not chunks:
            self._idle()
            return
        step_s = self._duration_s(decodes, chunks)
        self._step_s = step_s if not self._step_s else self._step_s + 0.05 * (step_s - self._step_s)
        self.now_s += step_s
        for each in decodes:
            each.computed += 1
        for each, chunk in chunks:
            each.computed += chunk
        for each in (*decodes, *(each for each, _ in chunks if each.computed == each.text)):
            self._token(each)

    def _duration_s(self, decodes: list[Played], chunks: list[tuple[Played, int]]) -> float:
        ms = self._machine.iteration.ms(
            tokens=len(decodes) + sum(chunk for _, chunk in chunks),
            context_tokens=sum(each.text for each in decodes),
            sequences=len(decodes) + len(chunks),
            pairs=sum(pairs_of(chunk, each.computed) for each, chunk in chunks),
            mixed=bool(chunks),
        )
        return ms / 1000

    def _rank(self, each: Played) -> int:
        return self._run.index(each.job.id) if each.job.id in self._run else len(self._run)

    def _token(self, each: Played) -> None:
        at_s = self.now_s - each.job.arrival_s
        each.times_s.append(at_s)
        each.timeline.deliver(1, at_s)
        if each.ended:
            each.place = Place.OUTSIDE
            self._present.remove(each)
            self._lives_s.append(at_s)
            self._answers.append(each.job.answer)
            self._stale = True

    def _shrink(self) -> None:
        """Preempt the last of `run` while the next tokens do not fit."""
        while self._free() < 0:
            inside = [each for each in self._present if each.place is not Place.OUTSIDE]
            self.forced += 1
            self._preempt(max(inside, key=self._rank))

    def _check(self) -> None:
        """Fail if more is inside than fits, or if requests starve."""
        assert self._free() >= 0
        assert sum(each.place is not Place.OUTSIDE for each in self._present) <= self._machine.seqs_max
        assert self.steps < STEPS_MAX, "requests starve"

    def _idle(self) -> None:
        """Go to the next event."""
        events = [each.loaded_s for each in self._present if each.place is Place.LOADING]
        events += [self._again_s] if self._again_s is not None else []
        events += [self._coming[-1].job.arrival_s] if self._coming else []
        later = [at_s for at_s in events if at_s > self.now_s]
        assert later, f"nothing runs and nothing will: {self._run}"
        self.now_s = min(later)
