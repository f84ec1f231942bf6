"""Host of a batch policy for the engine of one model: what the policy may know, and what it decided last."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from qlm.agents.batching.call_objective import begin_reader, call_objective
from qlm.agents.batching.decision import BatchPolicy, Decision
from qlm.agents.batching.pace import PaceMeter
from qlm.agents.batching.readers import ReaderColumns
from qlm.agents.batching.view import Machine
from qlm.agents.core.request import Phase, TrackedRequest
from qlm.agents.core.scheduling.hosting.views import Member, view_of
from qlm.domain.ids import RequestId

QUANTUM_NS: Final = 1_000_000_000
"""Shortest time between two decisions that preempt, and until a decision without an arrival or an end. An
abort and a resumption take tens of milliseconds, write to the store, and compute a text again."""


class BatchHost:
    """One policy and the requests that it knows. Its times are relative to the first of them.

    Attributes:
        coming: Requests of the latest decision that are still to be started, in order.
        skips: One of them that does not fit lets later ones in.
        again_ns: When the policy wants to be asked again at the latest; None for the next arrival or end.
        preempts_from_ns: Time from which a decision may preempt again.
    """

    def __init__(self, policy: BatchPolicy) -> None:
        """Begin without requests.

        Args:
            policy: A policy of its own.
        """
        self.coming: list[TrackedRequest] = []
        self.skips = False
        self.again_ns: int | None = None
        self.preempts_from_ns = 0
        self._policy: Final = policy
        self._meter: Final = PaceMeter()
        self._readers: Final = ReaderColumns()
        self._members: dict[RequestId, Member] = {}
        self._free_rows: list[int] = []
        self._origin_ns: int | None = None
        self._moves = -1

    def is_due(self, moves: int, now_ns: int) -> bool:
        """Return whether a request has changed its phase since `served`, or it is time to ask."""
        return moves != self._moves or self.is_time(now_ns)

    def is_time(self, now_ns: int) -> bool:
        """Return whether the policy wanted to be asked by now."""
        return self.again_ns is not None and self.again_ns <= now_ns

    def served(self, moves: int) -> None:
        """Note that its decision is in effect, as of so many changes of phases (`RequestTable.moves`)."""
        self._moves = moves

    def follow(self, present: Iterable[TrackedRequest], now_ns: int) -> bool:
        """Take the requests that the policy is to choose from; True if some are new or gone."""
        here = {tracked.id: tracked for tracked in present}
        members = self._members
        gone = [each for id, each in members.items() if here.get(id) is not each.tracked]
        for member in gone:
            self._forget(member, now_ns)
        new = [tracked for id, tracked in here.items() if id not in members]
        for tracked in new:
            self._add(tracked, now_ns)
        return bool(gone or new)

    def decide(
        self,
        inside: Sequence[TrackedRequest],
        outside: Sequence[TrackedRequest],
        machine: Machine,
        token_s: float,
        now_ns: int,
    ) -> frozenset[RequestId]:
        """Ask the policy; return who is to leave the engine for those that come, if any do.

        Args:
            inside: Requests that generate, those that stop to wait here included.
            outside: Requests that wait here.
            machine: The engine; its free blocks are counted here.
            token_s: Measured time per output token, for an iteration; 0 before the first answer.
            now_ns: The present.
        """
        members = [self._members[each.id] for each in (*inside, *outside)]
        times_ns, pace = (now_ns, self._origin_ns or 0), self._meter.pace()._replace(step_s=token_s)
        decision = self._policy.decide(view_of(times_ns, members, len(inside), self._readers, machine, pace))
        self.again_ns = None
        if decision.again_s is not None:
            again_ns = (self._origin_ns or 0) + round(decision.again_s * 1e9)
            self.again_ns = max(again_ns, now_ns + QUANTUM_NS)
        self.skips, self.coming = decision.skips, self._to_start(decision)
        leaving = [each.id for each in inside] if self.coming else []
        return frozenset(leaving).difference(decision.run)

    def idle(self) -> None:
        """Note that no request waits, so that there is nothing to decide."""
        self.coming, self.again_ns = [], None

    def ask_by(self, at_ns: int) -> None:
        """Ask the policy again at this time at the latest."""
        self.again_ns = at_ns if self.again_ns is None else min(self.again_ns, at_ns)

    def preempted(self) -> None:
        """Count a preemption by the policy."""
        self._meter.preempted()

    def delivered(self, generating: Iterable[TrackedRequest], now_ns: int) -> None:
        """Deliver the tokens that have come for these requests to their readers."""
        readers, rows_by_tokens = self._readers, dict[int, set[int]]()
        for tracked in generating:
            member = self._members.get(tracked.id)
            if member is not None:
                tokens = len(tracked.output) - int(readers.tokens[member.row])
                rows_by_tokens.setdefault(tokens, set()).add(member.row)
        at_s = self._seconds(now_ns)
        for tokens, rows in rows_by_tokens.items():
            if tokens > 0:
                readers.deliver_run(np.fromiter(rows, np.int64, len(rows)), tokens, at_s, 0.0)

    def _to_start(self, decision: Decision) -> list[TrackedRequest]:
        """Return the chosen ones that do not run: one that was just aborted may be among them."""
        chosen = [self._members[id].tracked for id in decision.run if id in self._members]
        return [each for each in chosen if each.phase is not Phase.RUNNING]

    def _add(self, tracked: TrackedRequest, now_ns: int) -> None:
        if self._origin_ns is None:
            self._origin_ns = now_ns
        objective = call_objective(tracked.request, len(tracked.output))
        row = self._free_rows.pop() if self._free_rows else len(self._members)
        self._members[tracked.id] = Member(tracked, row, objective)
        self._meter.arrived(tracked.request.prompt_tokens)
        begin_reader(self._readers, row, self._seconds(objective.arrival_ns), objective)

    def _forget(self, member: Member, now_ns: int) -> None:
        tracked = self._members.pop(member.tracked.id).tracked
        self._free_rows.append(member.row)
        if tracked.exit.outcome is not None and tracked.exit.outcome.ok:
            life_s = max(0, now_ns - tracked.request.arrival_ns) / 1e9
            self._meter.ended(len(tracked.output), life_s)

    def _seconds(self, at_ns: int) -> float:
        return (at_ns - (self._origin_ns or 0)) / 1e9
