"""Requests that wait anywhere in the simulated cluster, by model: for the account of idle time only."""

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
        self._waiting: dict[RequestId, ModelId] = {}
        self._running: dict[RequestId, ModelId] = {}
        self._counts: dict[ModelId, int] = {}

    def models(self) -> Collection[ModelId]:
        """Return the models with waiting requests, as a live view."""
        return self._counts.keys()

    def published(self, id: RequestId, model: ModelId) -> None:
        """Note a request that was accepted."""
        self._add(id, model)

    def started(self, id: RequestId) -> None:
        """Note the start of a generation."""
        model = self._waiting.get(id)
        if model is not None:
            self._running[id] = model
            self._remove(id, model)

    def stopped(self, id: RequestId) -> None:
        """Note a generation that stopped before the end of its request."""
        model = self._running.pop(id, None)
        if model is not None:
            self._add(id, model)

    def ended(self, id: RequestId) -> None:
        """Note the end of a request."""
        if self._running.pop(id, None) is None:
            self._remove(id, self._waiting[id])

    def _add(self, id: RequestId, model: ModelId) -> None:
        self._waiting[id] = model
        count = self._counts.get(model, 0)
        self._counts[model] = count + 1
        if not count:
            self.on_change()

    def _remove(self, id: RequestId, model: ModelId) -> None:
        del self._waiting[id]
        count = self._counts[model] = self._counts[model] - 1
        if not count:
            del self._counts[model]
            self.on_change()


def note_stopped(work: WaitingWork, agent: Agent, call_ids: Iterable[str]) -> None:
    """Note the requests of an agent whose generation is over, and that wait again."""
    for call_id in call_ids:
        id = RequestId(call_id.partition("-")[0])
        tracked = agent.state.requests.all.get(id)
        if tracked is None or not tracked.ended:
            work.stopped(id)
