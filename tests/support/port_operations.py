"""Operations of each port, and where failures are injected into those that no simulated trial calls."""

from collections.abc import Iterable
from typing import Final

from qlm.agents.engines.model_host import ManagedEngine
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.engine import Engine
from qlm.domain.ports.published import PublishedKind
from qlm.domain.ports.store import Store

PORTS: Final = {"store": Store, "broker": Broker, "engine": Engine, "unit": ManagedEngine}

OF_ROUTES: Final = {
    "store": {
        *("add_api_key", "api_keys", "ask_drain", "erase", "leader", "queue_position", "records"),
        *("refused_agents", "remove_api_key", "unplaced"),
    },
    "broker": {"pick", "probe"},
}
"""Operations that the routes of a gateway call (tests/integration/test_routes_injected.py)."""

OF_BATCHES: Final = {"store": {"add_end", "claim_ends", "settle_end"}}
"""Operations that batches and webhooks call (tests/integration/test_batches_injected.py)."""

OF_OTHERS: Final = {
    "store": {"report_unplaced", "close", "put_media", "media", "drop_media"},
    "broker": {"delete_unused", "close"},
    "engine": {"close"},
    "unit": {"prefetch", "drop_prefetched"},
}
"""Operations of Ray's supervisor (tests/unit/agents/test_ray_supervisor.py), of prompts with images
(tests/integration/gateway_rendered/test_gateway_media.py, tests/unit/agents/test_media.py), of rare runs of a
controller's reconciler (tests/unit/controller/test_reconciler.py), of swaps ahead of time
(tests/unit/agents/test_model_host.py), and of the end (tests/unit/cli/test_backends_end.py,
tests/unit/agents/test_launched_engine.py)."""


def operations(port: str) -> set[str]:
    """Return all that a port can be asked for."""
    return {name for name in dir(PORTS[port]) if not name.startswith("_")}


def called(port: str, names: Iterable[str]) -> set[str]:
    """Return the operations of a port among names of calls, which may end with what is published."""
    made = set(names)
    return {name for name in operations(port) if made & {name, *(f"{name}_{kind}" for kind in PublishedKind)}}
