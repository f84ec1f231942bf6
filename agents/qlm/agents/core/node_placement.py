"""Placement of agents on Ray nodes: what an instance requires, what the nodes offer, and why an agent waits.

Ray itself places actors; this module predicts the result and explains it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Resources = Mapping[str, float]
"""Amounts by the name of a Ray resource: `GPU`, `accelerator_type:A100`."""

ACCELERATOR_PREFIX: Final = "accelerator_type:"
"""Prefix of the resource that Ray adds for the accelerators of a node: one unit, whatever their number."""

ACCELERATOR_SHARE: Final = 0.001
"""Share of that unit per actor, as in Ray's own `accelerator_type` option."""

_NOT_ACCELERATORS: Final = ("memory", "object_store_memory", "node:")


@dataclass(frozen=True, slots=True)
class Node:
    """A live node of a Ray cluster.

    Attributes:
        name: Its address.
        resources: Its total resources, in use or not.
    """

    name: str
    resources: Resources


def gpu_resources(accelerator: str, gpus: int) -> Resources:
    """Return the requirement of an instance on real GPUs: their number, on a node with that kind."""
    return {"GPU": gpus, f"{ACCELERATOR_PREFIX}{accelerator}": ACCELERATOR_SHARE}


def emulated_resources(accelerator: str, gpus: int) -> Resources:
    """Return the requirement of an instance without GPUs: units of a resource that stands for them."""
    return {f"{ACCELERATOR_PREFIX}{accelerator}": gpus}


def resources_to_offer(required: Iterable[Resources]) -> Resources:
    """Return the resources that a Ray started by QLM must declare, so that all instances without GPUs fit.

    Ray finds GPUs and their kind by itself; they cannot be declared.
    """
    sums: dict[str, float] = {}
    for resources in required:
        if "GPU" not in resources:
            for name, amount in resources.items():
                sums[name] = sums.get(name, 0) + amount
    return {name: float(-(-amount // 1)) for name, amount in sums.items()}


def fits(required: Resources, nodes: Iterable[Node]) -> bool:
    """Return True if the total resources of some node suffice."""
    return any(
        all(node.resources.get(name, 0) >= amount for name, amount in required.items()) for node in nodes
    )


def waiting_reason(required: Resources, nodes: Sequence[Node]) -> str:
    """Explain in a few words why nothing that requires `required` has been placed."""
    if fits(required, nodes):
        return f"all of {_amounts(required)} is in use, or its process is starting"
    return f"no node offers {_amounts(required)}; {_offers(nodes)}"


def _amounts(resources: Resources) -> str:
    return ", ".join(f"{name}: {amount:g}" for name, amount in sorted(resources.items()))


def _offers(nodes: Sequence[Node]) -> str:
    if not nodes:
        return "no node is alive"
    return "; ".join(
        f"{node.name} has {_amounts(_accelerators(node.resources)) or 'none but processors and memory'}"
        for node in nodes
    )


def _accelerators(resources: Resources) -> Resources:
    return {
        name: amount
        for name, amount in resources.items()
        if name != "CPU" and not name.startswith(_NOT_ACCELERATORS)
    }
