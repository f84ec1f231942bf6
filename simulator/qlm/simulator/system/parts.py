"""What a trial is built of, as far as a test may put something faulty in its place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qlm.agents.protocol import AgentProtocol, AgentSettings
from qlm.domain.ids import ModelId
from qlm.domain.lease import Holder
from qlm.simulator.system.store_server import MakeCore
from qlm.store.core import StoreCore
from qlm.store.limits import StoreLimits

MakeAgent = Callable[[Holder, str, Sequence[ModelId], AgentSettings], AgentProtocol]
"""Makes the protocol of one agent."""


def make_core(incarnation: int) -> StoreCore:
    """Make the production state machine of the shared state."""
    return StoreCore(incarnation, StoreLimits(events_max=4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The decisions under trial; by default production's own.

    Attributes:
        make_core: Makes the shared state, and after a flush another one of the incarnation given.
        make_agent: Makes agents.
    """

    make_core: MakeCore = make_core
    make_agent: MakeAgent = AgentProtocol


PRODUCTION = Parts()
"""What production runs."""
