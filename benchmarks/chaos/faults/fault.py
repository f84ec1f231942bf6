"""Kinds of faults, and the result of one."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.chaos.rig import Rig

LEASES_S: Final = (6.0, 10.0)
"""Shortest and longest time of a pause: longer than each lease (agent 3.5 s, leadership 3 s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A fault that was caused and is repaired, or that the product has to repair.

    Attributes:
        target: What it hit.
        unkept: Promise of the product that was not kept while it lasted; empty if there was none.
    """

    target: str
    unkept: str = ""


Strike = Callable[[Rig, random.Random], Hit]
"""Causes a fault, and repairs what the product does not repair itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: Name on the command line and in the table.
        group: Name for all kinds like it.
        strike: Causes it.
        deletes: It deletes from Redis, so delivered output may be lost.
        crowd: Many requests wait when it strikes.
    """

    name: str
    group: str
    strike: Strike
    deletes: bool = False
    crowd: bool = False


def last_a_while(rng: random.Random) -> None:
    """Wait for longer than each lease."""
    time.sleep(rng.uniform(*LEASES_S))


def waited(holds: Callable[[], bool], limit_s: float) -> bool:
    """Wait for a condition; return False if it does not hold within the limit."""
    over_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > over_s:
            return False
        time.sleep(0.1)
    return True
