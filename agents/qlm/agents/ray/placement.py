"""Where an agent fits: what its instance takes from a node, and what the nodes of a Ray cluster offer.

Ray itself places; this says beforehand, and in words, why an agent waits for a place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Resources = Mapping[str, float]
"""Amounts by the name of a Ray resource: `GPU`, `accelerator_type:A100`."""

ACCELERATOR_PREFIX: Final = "accelerator_type:"
"""Ray names the accelerators that it finds on a node so, one unit per node however many there are."""

ACCELERATOR_SHARE: Final = 0.001
"""Of that unit, for each actor: what Ray's own `accelerator_type` option takes."""

_OF_THE_NODE: Final = ("memory", "object_store_memory", "node:")


@dataclass(frozen=True, slots=True)
class Node:
    """A live node of a Ray cluster.

    Attributes:
        name: Its address.
        resources: What it has in all, in use or not.
    """

    name: str
    resources: Resources


def real_accelerators(accelerator: str, gpus: int) -> Resources:
    """What an instance on real GPUs takes: the GPUs, on a node that has that kind."""
    return {"GPU": gpus, f"{ACCELERATOR_PREFIX}{accelerator}": ACCELERATOR_SHARE}


def emulated_accelerators(accelerator: str, gpus: int) -> Resources:
    """What an instance without GPUs of its own takes: units of a resource that stands for them."""
    return {f"{ACCELERATOR_PREFIX}{accelerator}": gpus}


def offered(wanted: Iterable[Resources]) -> Resources:
    """What a Ray of our own must be told to offer so that all that needs no GPU fits.

    GPUs, and the kind of them, it finds by itself; they cannot be made up.
    """
    sums: dict[str, float] = {}
    for resources in wanted:
        if "GPU" not in resources:
            for name, amount in resources.items():
                sums[name] = sums.get(name, 0) + amount
    return {name: float(-(-amount // 1)) for name, amount in sums.items()}


def fits(wanted: Resources, nodes: Iterable[Node]) -> bool:
    """Whether some node has enough, were nothing of it in use."""
    return any(not _lacking(wanted, node) for node in nodes)


def why_it_waits(wanted: Resources, nodes: Sequence[Node]) -> str:
    """Say in a few words why nothing was placed that takes `wanted`."""
    if fits(wanted, nodes):
        return f"all of {_amounts(wanted)} is in use, or its process is starting"
    return f"no node offers {_amounts(wanted)}; {_offers(nodes)}"


def _lacking(wanted: Resources, node: Node) -> bool:
    return any(node.resources.get(name, 0) < amount for name, amount in wanted.items())


def _amounts(resources: Resources) -> str:
    return ", ".join(f"{name}: {amount:g}" for name, amount in sorted(resources.items()))


def _offers(nodes: Sequence[Node]) -> str:
    if not nodes:
        return "no node is alive"
    told = [
        f"{node.name} has {_amounts(own) or 'none but processors and memory'}"
        for node in nodes
        for own in [_own(node.resources)]
    ]
    return "; ".join(told)


def _own(resources: Resources) -> Resources:
    return {
        name: amount
        for name, amount in resources.items()
        if name != "CPU" and not name.startswith(_OF_THE_NODE)
    }
