"""Parts of a trial that a test may replace by faulty ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from qlm.agents.core.agent import Agent
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.state import AgentSettings
from qlm.domain.ids import ModelId
from qlm.domain.lease import Holder
from qlm.store.core.limits import StoreLimits
from qlm.store.core.state import State
from simulation.store_server import MakeState, StoreServer

P = TypeVar("P")

MakeAgent = Callable[[Holder, str, Sequence[ModelId], AgentSettings, OperationCosts], Agent]
"""Makes the decision core of one agent."""


class Wrap(Protocol):
    """Wraps one port of one process."""

    def __call__(self, part: str, port: str, served: P, /) -> P:
        """Return the port to use in place of `served`."""
        ...


def make_state(incarnation: int) -> State:
    """Make an empty shared state."""
    return State(incarnation, StoreLimits(events_max=4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The decisions under trial; by default production's own.

    Attributes:
        make_state: Makes the shared state of an incarnation, at the start and after each flush.
        make_store: Makes the store server.
        make_agent: Makes agents.
        wrap: Wraps the ports of a process, given the kind of process and the port's name; None to leave them.
    """

    make_state: MakeState = make_state
    make_store: type[StoreServer] = StoreServer
    make_agent: MakeAgent = Agent
    wrap: Wrap | None = None


PRODUCTION = Parts()
"""Production's own parts."""
