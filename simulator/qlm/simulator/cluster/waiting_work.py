"""Requests that wait anywhere in the simulated cluster, by model: for the account of idle time only."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable

from qlm.agents.core.agent import Agent
from qlm.domain.ids import ModelId, RequestId


class WaitingWork:
    """Requests that were accepted, have not ended, and run on no engine.

    Attributes:
        on_change: Called after a model got its first waiting request or lost its last one.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._model: dict[RequestId, ModelId] = {}
        self._running: set[RequestId] = set()
        self._waiting: Counter[ModelId] = Counter()

    def models(self) -> Collection[ModelId]:
        """Return the models with waiting requests, as a live view."""
        return self._waiting.keys()

    def published(self, id: RequestId, model: ModelId) -> None:
        """Note a request that was accepted."""
        self._model[id] = model
        self._add(model)

    def started(self, id: RequestId) -> None:
        """Note the start of a generation."""
        if id in self._model and id not in self._running:
            self._running.add(id)
            self._remove(self._model[id])

    def stopped(self, id: RequestId) -> None:
        """Note a generation that stopped before the end of its request."""
        if id in self._running:
            self._running.remove(id)
            self._add(self._model[id])

    def ended(self, id: RequestId) -> None:
        """Note the end of a request."""
        model = self._model.pop(id)
        if id in self._running:
            self._running.remove(id)
        else:
            self._remove(model)

    def _add(self, model: ModelId) -> None:
        self._waiting[model] += 1
        if self._waiting[model] == 1:
            self.on_change()

    def _remove(self, model: ModelId) -> None:
        self._waiting[model] -= 1
        if not self._waiting[model]:
            del self._waiting[model]
            self.on_change()


def note_stopped(work: WaitingWork, agent: Agent, call_ids: Iterable[str]) -> None:
    """Note the requests of an agent whose generation is over, and that wait again."""
    for call_id in call_ids:
        id = RequestId(call_id.partition("-")[0])
        tracked = agent.state.requests.all.get(id)
        if tracked is None or not tracked.ended:
            work.stopped(id)
