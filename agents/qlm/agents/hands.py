"""What an agent has in hand: its requests by phase, and what follows from their phases and lengths.

Requests come, change phase and go through here only, so that sets and sums cannot drift from them; their
tokens are counted in `kv`.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain

from qlm.agents.held import GENERATING, Held, Phase
from qlm.agents.kv_ledger import KvLedger
from qlm.domain.fleet import EngineCapacity, OpenAnswers, StagedWork
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId, RequestId
from qlm.domain.length_histogram import length_bin


class StagedRequests:
    """Requests of one model that wait for room, most urgent first; equals in the order they were taken."""

    def __init__(self) -> None:
        self._sorted: list[tuple[tuple[int, float, int], int, Held]] = []
        self.fresh = 0
        """How many were never evicted here."""

    def __len__(self) -> int:
        return len(self._sorted)

    def __iter__(self) -> Iterator[Held]:
        return (held for _, _, held in self._sorted)

    def first(self) -> Held:
        """The most urgent one."""
        return self._sorted[0][2]

    def add(self, held: Held) -> None:
        """Put a request in its place."""
        insort(self._sorted, (held.urgency, held.order, held))
        self.fresh += not held.parked

    def remove(self, held: Held) -> None:
        """Take a request out."""
        del self._sorted[bisect_left(self._sorted, (held.urgency, held.order))]
        self.fresh -= not held.parked


class Hands:
    """The requests of one agent.

    Attributes:
        held: All of them, in the order in which they were taken.
        leasing: Those whose lease is being asked for.
        running: Those that generate and are to go on.
        aborting: Those that generate and were asked to stop.
        closing: Those whose last tokens or outcome are on their way to the log.
        kv: Sums over those that generate.
    """

    def __init__(self) -> None:
        self.held: dict[RequestId, Held] = {}
        self._phases: tuple[dict[RequestId, Held], ...] = tuple({} for _ in Phase)
        self.leasing = self._phases[Phase.LEASING]
        self._staged = self._phases[Phase.STAGED]
        self.running = self._phases[Phase.RUNNING]
        self.aborting = self._phases[Phase.ABORTING]
        self.closing = self._phases[Phase.CLOSING]
        self._by_model: dict[ModelId, StagedRequests] = {}
        self.kv = KvLedger()
        self._taken = 0

    @property
    def staged(self) -> int:
        """How many wait for room."""
        return len(self._staged)

    @property
    def fresh(self) -> int:
        """How many are on their way to their first start here."""
        return len(self.leasing) + sum(staged.fresh for staged in self._by_model.values())

    def staged_for(self, model: ModelId) -> StagedRequests:
        """The requests of a model that wait for room."""
        if model not in self._by_model:
            self._by_model[model] = StagedRequests()
        return self._by_model[model]

    def staged_except(self, model: ModelId | None) -> list[Held]:
        """The requests of all other models that wait for room."""
        if not self._staged:
            return []
        return [held for key, staged in self._by_model.items() if key != model and staged for held in staged]

    def staged_work(self) -> tuple[StagedWork, ...]:
        """What waits for room, by class."""
        counts: dict[RequestClass, list[int]] = {}
        for held in self._staged.values():
            of_class = counts.setdefault(held.request.cls, [0, 0, 0])
            of_class[held.parked] += 1
            of_class[2] += held.tokens if held.parked and not held.swapped_out else 0
        return tuple(
            StagedWork(cls=cls, fresh=fresh, evicted=evicted, evicted_tokens=tokens)
            for cls, (fresh, evicted, tokens) in sorted(counts.items(), key=lambda item: item[0].queue)
        )

    def open_answers(self) -> tuple[OpenAnswers, ...]:
        """How long the answers are that have begun and may go on, by class."""
        begun: dict[RequestClass, dict[int, list[int]]] = {}
        for held in chain(self.running.values(), self._staged.values()):
            tokens = len(held.output)
            if tokens:
                of_bin = begun.setdefault(held.request.cls, {}).setdefault(length_bin(tokens), [0, 0])
                of_bin[0] += 1
                of_bin[1] += tokens
        return tuple(
            OpenAnswers(cls=cls, counts=tuple((at, n, tokens) for at, (n, tokens) in sorted(bins.items())))
            for cls, bins in sorted(begun.items(), key=lambda item: item[0].queue)
        )

    def take(self, held: Held) -> None:
        """Take a request in hand, in the phase in which it is."""
        self._taken += 1
        held.order = self._taken
        self.held[held.id] = held
        self._enter(held)

    def drop(self, held: Held) -> None:
        """Let go of a request."""
        del self.held[held.id]
        self._leave(held)

    def move(self, held: Held, phase: Phase, *, parked: bool = False) -> None:
        """Change the phase of a request; `parked` tells an evicted one among those that wait."""
        self._leave(held)
        held.phase, held.parked = phase, parked
        self._enter(held)

    def resize(self, capacity: EngineCapacity) -> None:
        """Count in the blocks of another engine."""
        self.kv.resize(capacity, chain(self.running.values(), self.aborting.values()))

    def _enter(self, held: Held) -> None:
        phase = held.phase
        self._phases[phase][held.id] = held
        if phase is Phase.STAGED:
            self.staged_for(held.request.model).add(held)
        elif phase in GENERATING:
            self.kv.add(held)

    def _leave(self, held: Held) -> None:
        phase = held.phase
        del self._phases[phase][held.id]
        if phase is Phase.STAGED:
            self.staged_for(held.request.model).remove(held)
        elif phase in GENERATING:
            self.kv.remove(held)
