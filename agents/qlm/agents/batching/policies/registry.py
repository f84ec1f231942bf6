"""Batch policies by name."""

from collections.abc import Callable, Mapping
from typing import Final

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.policies.andes.policy import Andes
from qlm.agents.batching.policies.fcfs import FirstComeFirstServed
from qlm.agents.batching.policies.tokenflow.policy import TokenFlow
from qlm.domain.errors import InvalidValueError

FCFS: Final = "fcfs"
"""The rule of engines without a batch policy."""

POLICIES: Final[Mapping[str, Callable[[], BatchPolicy]]] = {
    "andes": Andes,
    FCFS: FirstComeFirstServed,
    "tokenflow": TokenFlow,
}


def batch_policy(name: str) -> BatchPolicy:
    """Return a new policy for one instance.

    Raises:
        InvalidValueError: No policy has that name.
    """
    if name not in POLICIES:
        raise InvalidValueError("batching", name, "one of " + ", ".join(POLICIES))
    return POLICIES[name]()
