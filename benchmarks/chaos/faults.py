"""Faults: kill -9 and restart of each process."""

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Final

from benchmarks.chaos.rig import ATTACHED, LAUNCHED, READY_S, Rig
from qlm.agents.engines.guard import descendants

DOWN_MAX_S: Final = 3.0
"""Longest time from a kill to the restart; the time is drawn."""

Fault = Callable[[Rig, random.Random], str]
"""Causes and repairs a fault; returns the name of its target."""


def gateway(rig: Rig, rng: random.Random) -> str:
    """Kill one of the gateways."""
    number = rng.randrange(len(rig.parts.gateways))
    process = rig.parts.gateways[number]
    process.kill()
    _stay_down(rng)
    process.start()
    return f"gateway-{number}"


def controller(rig: Rig, rng: random.Random) -> str:
    """Kill the leading controller."""
    process = rig.leading_controller()
    assert process is not None, "no controller led before the fault"
    process.kill()
    _stay_down(rng)
    process.start()
    return "controller" if process is rig.parts.controller else "standby"


def agent(rig: Rig, rng: random.Random) -> str:
    """Kill one of the agents, but not its engine."""
    name = rng.choice(sorted(rig.parts.agents))
    process = rig.parts.agents[name]
    process.kill()
    _stay_down(rng)
    process.start()
    return name


def engine(rig: Rig, rng: random.Random) -> str:
    """Kill one of the engines; its agent restarts it, but for the attached one."""
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
    """Kill Redis; it restarts from its append-only file."""
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
