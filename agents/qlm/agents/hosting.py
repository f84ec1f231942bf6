"""What the interpreter of an agent asks of whoever moves its engines."""

from collections.abc import Callable, Sequence
from typing import Protocol

from qlm.agents.events import EngineChanged, HeldAhead
from qlm.domain.ids import ModelId
from qlm.domain.ports.engine import Engine


class EngineHost(Protocol):
    """Whatever starts, stops and swaps the engines of one instance."""

    def engine(self) -> Engine | None:
        """Return the awake engine, if any."""
        ...

    async def swap(self, model: ModelId, later: Sequence[ModelId] = ()) -> EngineChanged:
        """Make a model's engine the awake one; tell how that ended."""
        ...

    async def warm(self, model: ModelId) -> HeldAhead:
        """Hold a model's weights files in host memory ahead of its turn, if there is room."""
        ...

    async def cool(self, model: ModelId) -> HeldAhead:
        """Let go of weights files held ahead."""
        ...

    def subscribe(self, on_change: Callable[[EngineChanged | HeldAhead], None]) -> None:
        """Tell `on_change` of every change that is not the answer to a call."""
        ...

    async def close(self) -> None:
        """Stop all engines."""
        ...
