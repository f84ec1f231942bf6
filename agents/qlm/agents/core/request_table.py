"""The agent's request table: every index over its requests, with running totals.

Requests enter, change phase and leave through `RequestTable` only, so that no index can drift from them.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, groupby
from operator import attrgetter
from typing import Final

from qlm.agents.core.costs.engine_speed import NO_SPEED, EngineSpeed
from qlm.agents.core.kv_ledger import KvLedger
from qlm.agents.core.output.pending import PendingOutput
from qlm.agents.core.prefill_backlog import PrefillBacklog
from qlm.agents.core.request import GENERATING, Phase, TrackedRequest
from qlm.agents.core.stats.pace import Pace
from qlm.agents.core.timers import DueTimes
from qlm.domain.fleet import EngineCapacity, OpenAnswers, StagedWork
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.length_histogram import binned

_CLASS: Final[Callable[[TrackedRequest], RequestClass]] = attrgetter("request.cls")

ABORT_AGAIN_NS: Final = 1_000_000_000
"""An abort without effect is repeated after this time."""


class ReadyRequests:
    """Requests of one model waiting for a batch slot, most urgent first, equals in the order of their pulls.

    Attributes:
        new: Number of those never preempted here.
    """

    def __init__(self) -> None:
        self._sorted: list[tuple[tuple[int, float, int], int, TrackedRequest]] = []
        self.new = 0

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[TrackedRequest]:
        return (tracked for _, _, tracked in self._sorted)

    def first(self) -> TrackedRequest:
        """Return the most urgent request."""
        return self._sorted[0][2]

    def as_urgent_as(self, head: tuple[int, float, int]) -> int:
        """Return the number of those at least as urgent as a head, by priority and deadline."""
        return bisect_right(self._sorted, head[:2], key=lambda entry: entry[0][:2])

    def add(self, tracked: TrackedRequest) -> None:
        """Insert a request by its urgency."""
        insort(self._sorted, (tracked.urgency, tracked.order, tracked))
        self.new += not tracked.generation.preempted

    def remove(self, tracked: TrackedRequest) -> None:
        """Remove a request."""
        del self._sorted[bisect_left(self._sorted, (tracked.urgency, tracked.order))]
        self.new -= not tracked.generation.preempted


class RunningIndex:
    """Answers the questions of preemption about the running requests without a scan at each event.

    Each answer remembers the request that decided it, and scans again only when that one no longer runs, or
    when the bound that it gives does not decide.

    Args:
        running: The running requests, a live view.

    Attributes:
        searched_ns: When they were last searched for readers that were given up (`scheduling.giving_up`).
    """

    def __init__(self, running: Mapping[RequestId, TrackedRequest]) -> None:
        self.searched_ns = -1
        self._running = running
        self._shortest: TrackedRequest | None = None
        self._least_urgent: TrackedRequest | None = None
        self._least_urgent_known = True

    def started(self, tracked: TrackedRequest) -> None:
        """Note a request that starts to run."""
        least = self._least_urgent
        if tracked is least:
            # Resumed after a preemption, it may no longer be preemptible.
            self._least_urgent_known = False
        elif (
            self._least_urgent_known
            and tracked.preemptible
            and (least is None or tracked.urgency[:2] > least.urgency[:2])
        ):
            self._least_urgent = tracked

    def any_less_urgent(self, head: tuple[int, float, int]) -> bool:
        """Return True if a running request may be preempted for a head of this urgency."""
        if self._least_urgent is not None and not self._runs(self._least_urgent):
            self._least_urgent_known = False
        if not self._least_urgent_known:
            preemptible = (tracked for tracked in self._running.values() if tracked.preemptible)
            self._least_urgent = max(preemptible, key=lambda tracked: tracked.urgency[:2], default=None)
            self._least_urgent_known = True
        return self._least_urgent is not None and self._least_urgent.urgency[:2] > head[:2]

    def preempt_at_ns(self, start_by_ns: int, pace: Pace, now_ns: int) -> int:
        """Return the time from which waiting for a slot to free by itself would miss a latest start.

        The wait is bounded by the running request that is expected to end first. There must be one. Tokens
        that come meanwhile only move the time into the future.
        """

        def at_ns(tracked: TrackedRequest) -> int:
            return pace.latest_wait_ns(start_by_ns, tracked.tokens_left, tracked.generation.started_ns)

        if self._shortest is not None and self._runs(self._shortest):
            # It was the first once; if it still is matters only when it reports that the time has come.
            known_ns = at_ns(self._shortest)
            if known_ns > now_ns:
                return known_ns
        self._shortest = max(self._running.values(), key=at_ns)
        return at_ns(self._shortest)

    def _runs(self, tracked: TrackedRequest) -> bool:
        return self._running.get(tracked.id) is tracked


class RequestTable:
    """The requests of one agent.

    Attributes:
        all: All of them, in the order of their pulls.
        leasing: Those whose lease was requested.
        running: Those that generate and are to continue.
        aborting: Those that generate and were asked to stop.
        closing: Those whose last tokens or outcome are not yet logged.
        calls: Those with a live engine call, by its id.
        replays: Output tokens repeated so far, by the id of a call that repeats what is logged.
        kv: Sums over those that generate.
        prefill: Prompts that the engine has not computed yet.
        running_index: Answers about `running` for preemption.
        output: Those with something to write to their output log.
        to_restore: Those whose lease the store has lost.
        drop_times: Deadlines of those to be dropped if late.
        abort_checks: Times at which an abort without effect is repeated.
        moves: Requests that have left a phase since the start.
    """

    def __init__(self) -> None:
        self.all: dict[RequestId, TrackedRequest] = {}
        self._phases: tuple[dict[RequestId, TrackedRequest], ...] = tuple({} for _ in Phase)
        self.leasing = self._phases[Phase.LEASING]
        self._ready = self._phases[Phase.READY]
        self.running = self._phases[Phase.RUNNING]
        self.aborting = self._phases[Phase.ABORTING]
        self.closing = self._phases[Phase.CLOSING]
        self._ready_by_model: dict[ModelId, ReadyRequests] = {}
        self.calls: dict[str, TrackedRequest] = {}
        self.replays: dict[str, int] = {}
        self.kv = KvLedger()
        self.prefill = PrefillBacklog()
        self.running_index = RunningIndex(self.running)
        self.output = PendingOutput()
        self.to_restore: set[RequestId] = set()
        self.drop_times = DueTimes(self._may_be_dropped)
        self.abort_checks = DueTimes(self._abort_unanswered)
        self.moves = 0
        self._added = 0

    @property
    def ready(self) -> int:
        """Number of requests waiting for a batch slot."""
        return len(self._ready)

    @property
    def new(self) -> int:
        """Number of requests that were never started here."""
        return len(self.leasing) + sum(ready.new for ready in self._ready_by_model.values())

    def ready_for(self, model: ModelId) -> ReadyRequests:
        """Return the requests of a model that wait for a batch slot."""
        ready = self._ready_by_model.get(model)
        if ready is None:
            ready = self._ready_by_model[model] = ReadyRequests()
        return ready

    def ready_except(self, model: ModelId | None) -> list[TrackedRequest]:
        """Return the requests of all other models that wait for a batch slot."""
        if not self._ready:
            return []
        others = [ready for key, ready in self._ready_by_model.items() if key != model and ready]
        return [tracked for ready in others for tracked in ready]

    def ready_work(self) -> tuple[StagedWork, ...]:
        """Return the work that waits for a batch slot, by class."""
        counts: dict[RequestClass, list[int]] = {}
        for tracked in self._ready.values():
            generation = tracked.generation
            of_class = counts.setdefault(tracked.request.cls, [0, 0, 0])
            of_class[generation.preempted] += 1
            of_class[2] += tracked.tokens if generation.preempted and not generation.swapped_out else 0
        return tuple(
            StagedWork(cls=cls, fresh=new, evicted=preempted, evicted_tokens=tokens)
            for cls, (new, preempted, tokens) in sorted(counts.items(), key=lambda item: item[0].queue)
        )

    def open_answers(self) -> tuple[OpenAnswers, ...]:
        """Return the lengths of the answers that have begun and may continue, by class."""
        begun: dict[RequestClass, list[int]] = {}
        # Neighbours often share their class, and its hash takes time.
        for cls, of_class in groupby(chain(self.running.values(), self._ready.values()), _CLASS):
            if lengths := [tokens for tracked in of_class if (tokens := len(tracked.output))]:
                begun.setdefault(cls, []).extend(lengths)
        return tuple(
            OpenAnswers(cls=cls, counts=binned(lengths))
            for cls, lengths in sorted(begun.items(), key=lambda item: item[0].queue)
        )

    def add(self, tracked: TrackedRequest) -> None:
        """Add a request that was just pulled."""
        self._added += 1
        tracked.order = self._added
        self.all[tracked.id] = tracked
        self.enter(tracked)
        if (drop_at_ns := tracked.request.drop_at_ns) is not None:
            self.drop_times.add(drop_at_ns, tracked)

    def remove(self, tracked: TrackedRequest) -> bool:
        """Remove a request; True if its engine call is still live and must be aborted."""
        del self.all[tracked.id]
        self.leave(tracked)
        self.output.forget(tracked.id)
        self.to_restore.discard(tracked.id)
        return self.end_call(tracked.generation.call_id) is not None

    def end_call(self, call_id: str) -> TrackedRequest | None:
        """Remove an engine call, and return its request; None if it is not live."""
        self.replays.pop(call_id, None)
        return self.calls.pop(call_id, None)

    def abort_sent(self, tracked: TrackedRequest, now_ns: int) -> None:
        """Note an abort, to be repeated if the engine does not answer it."""
        tracked.generation.aborted_ns = now_ns
        self.abort_checks.add(now_ns + ABORT_AGAIN_NS, tracked)

    def resize(
        self,
        capacity: EngineCapacity,
        pool: int,
        *,
        speed: EngineSpeed = NO_SPEED,
        pool_waits_here: bool = False,
    ) -> None:
        """Recount KV blocks and prompts for another engine, whose batch policy has a pool of this size."""
        generating = [*self.running.values(), *self.aborting.values()]
        self.kv.resize(capacity, pool, generating, pool_waits_here=pool_waits_here)
        self.prefill.resize(speed, generating)

    def enter(self, tracked: TrackedRequest) -> None:
        """Index a request under its phase; `lifecycle` calls it after each change."""
        phase = tracked.phase
        self._phases[phase][tracked.id] = tracked
        if phase is Phase.READY:
            self.ready_for(tracked.request.model).add(tracked)
        elif phase in GENERATING:
            self.kv.add(tracked)

    def leave(self, tracked: TrackedRequest) -> None:
        """Take a request out of the index of its phase; `lifecycle` calls it before each change."""
        phase = tracked.phase
        self.moves += 1
        del self._phases[phase][tracked.id]
        if phase is Phase.READY:
            self.ready_for(tracked.request.model).remove(tracked)
        elif phase in GENERATING:
            self.kv.remove(tracked)
            self.prefill.over(tracked)

    def _may_be_dropped(self, tracked: TrackedRequest, at_ns: int) -> bool:
        return self.all.get(tracked.id) is tracked and not tracked.ended

    def _abort_unanswered(self, tracked: TrackedRequest, at_ns: int) -> bool:
        # A newer abort of the same request has its own entry.
        aborting = self.aborting.get(tracked.id) is tracked
        return aborting and tracked.generation.aborted_ns + ABORT_AGAIN_NS == at_ns
