"""Kinds of faults: what each does, to whom, for how long, and how often it is drawn."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from simulation.cluster import Cluster
from simulation.settings import CONTROLLERS, GATEWAYS, INSTANCES

ALL_PROCESSES: Final = (*GATEWAYS, *CONTROLLERS, *INSTANCES)
AGENTS: Final = tuple(INSTANCES)
AT_ONCE: Final = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A scheduled fault: its kind, time, target and duration."""

    kind: str
    at_s: float
    target: str
    lasts_s: float
    chance: Random


Act = Callable[[Cluster, PlannedFault], Awaitable[None]]
"""Causes a fault, and ends it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        act: Causes a fault, and ends it.
        targets: Names of which one is drawn.
        lasts_s: Shortest and longest duration.
        weight: How often it is drawn, compared with others.
    """

    act: Act
    targets: tuple[str, ...]
    lasts_s: tuple[float, float] = AT_ONCE
    weight: float = 1.0
