"""Batch policies by name."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.policies.andes.policy import Andes
from qlm.agents.batching.policies.annealing.policy import Annealing, Mode
from qlm.agents.batching.policies.edf import EarliestDeadlineFirst
from qlm.agents.batching.policies.fcfs import FirstComeFirstServed
from qlm.agents.batching.policies.round_robin import RoundRobin
from qlm.agents.batching.policies.tokenflow.policy import TokenFlow
from qlm.agents.batching.policies.unified.policy import Unified
from qlm.agents.batching.policies.virtual_queue import VirtualQueueOrder
from qlm.domain.errors import InvalidValueError

FCFS: Final = "fcfs"
"""The rule of engines without a batch policy."""

POLICIES: Final[Mapping[str, Callable[[], BatchPolicy]]] = {
    FCFS: FirstComeFirstServed,
    "round-robin": RoundRobin,
    "edf": EarliestDeadlineFirst,
    "virtual-queue": VirtualQueueOrder,
    "andes": Andes,
    "tokenflow": TokenFlow,
    "unified": Unified,
    "annealing": Annealing,
    "annealing-continuous": partial(Annealing, Mode.CONTINUOUS),
}


BY_ABORTS: Final = (FCFS, "edf", "virtual-queue", "annealing", "annealing-continuous")
"""Policies that an agent may host by aborts. The others take turns within a second, or hold requests."""


def batch_policy(name: str) -> BatchPolicy:
    """Return a new policy for one instance, compiled where it can be: that may take seconds.

    Raises:
        InvalidValueError: No policy has that name.
    """
    if name not in POLICIES:
        raise InvalidValueError("batching", name, "one of " + ", ".join(POLICIES))
    policy = POLICIES[name]()
    if isinstance(policy, Annealing):
        policy.compile()
    return policy
