"""What is done to a cluster: kill -9 of each part, which is started again, and an emptied Redis."""

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Final

from benchmarks.chaos.rig import ATTACHED, LAUNCHED, READY_S, Rig
from qlm.agents.guard import descendants

DOWN_MAX_S: Final = 3.0
"""Longest time from a kill until the part is started again; drawn."""

Fault = Callable[[Rig, random.Random], str]
"""Does it and repairs it; returns what exactly was hit."""


def gateway(rig: Rig, rng: random.Random) -> str:
    """Kill one of the gateways."""
    number = rng.randrange(len(rig.parts.gateways))
    process = rig.parts.gateways[number]
    process.kill()
    _stay_down(rng)
    process.start()
    return f"gateway-{number}"


def controller(rig: Rig, rng: random.Random) -> str:
    """Kill the controller that leads."""
    process = rig.leading()
    assert process is not None, "nobody led before the fault"
    process.kill()
    _stay_down(rng)
    process.start()
    return "controller" if process is rig.parts.controller else "standby"


def agent(rig: Rig, rng: random.Random) -> str:
    """Kill one of the agents; what its engine does then is its own affair."""
    name = rng.choice(sorted(rig.parts.agents))
    process = rig.parts.agents[name]
    process.kill()
    _stay_down(rng)
    process.start()
    return name


def engine(rig: Rig, rng: random.Random) -> str:
    """Kill one of the engines; its agent starts it again, but for the one that is only attached to."""
    name = rng.choice((*LAUNCHED, ATTACHED))
    if name == ATTACHED:
        rig.engine.kill()
        _stay_down(rng)
        rig.engine.start()
    else:
        _guard, process, *_ = descendants(rig.parts.agents[name].pid)
        os.kill(process, signal.SIGKILL)
    return f"engine of {name}"


def redis(rig: Rig, rng: random.Random) -> str:
    """Kill Redis; it comes back on its append-only file."""
    rig.redis.kill()
    _stay_down(rng)
    rig.redis.start(timeout_s=READY_S)
    return "redis"


def rabbitmq(rig: Rig, rng: random.Random) -> str:
    """Kill RabbitMQ."""
    rig.rabbitmq.kill()
    _stay_down(rng)
    rig.rabbitmq.start(timeout_s=READY_S)
    return "rabbitmq"


KILLS: Final[dict[str, Fault]] = {
    "gateway": gateway,
    "controller": controller,
    "agent": agent,
    "engine": engine,
    "redis": redis,
    "rabbitmq": rabbitmq,
}


def _stay_down(rng: random.Random) -> None:
    time.sleep(rng.uniform(0.0, DOWN_MAX_S))
