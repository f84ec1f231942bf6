"""Kind `partition`: nothing arrives from a process at a server, or at it from there, for a while."""

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.chaos.faults.fault import Hit, Kind, last_a_while
from benchmarks.chaos.relay import DIRECTIONS
from benchmarks.chaos.relays import SERVERS
from benchmarks.chaos.rig import LAUNCHED, Rig


def gateway(rig: Rig) -> str:
    """Choose the gateway behind a relay."""
    return "gateway-0"


def controller(rig: Rig) -> str:
    """Choose the leading controller."""
    process = rig.leading_controller()
    assert process is not None, "no controller led before the fault"
    return process.name


def agent(rig: Rig) -> str:
    """Choose the agent behind a relay."""
    return f"agent-{LAUNCHED[0]}"


def strike(choose: Callable[[Rig], str], direction: str, rig: Rig, rng: random.Random) -> Hit:
    """Hold one direction back; then what was held arrives late, or the connections end."""
    assert rig.relays is not None, "the rig has no relays"
    process, server, reset = choose(rig), rng.choice(SERVERS), rng.random() < 0.5
    rig.relays.hold(process, server, direction)
    try:
        last_a_while(rng)
    finally:
        rig.relays.heal(process, server, reset=reset)
    return Hit(target=f"{process} {direction} {server}")


PARTITIONS: Final = tuple(
    Kind(
        name=f"partition-{choose.__name__}-{direction}",
        group="partition",
        strike=partial(strike, choose, direction),
    )
    for choose in (gateway, controller, agent)
    for direction in DIRECTIONS
)
