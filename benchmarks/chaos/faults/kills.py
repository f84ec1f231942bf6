"""Kinds `kill` and `flush`: kill -9 and restart of each process; Redis emptied."""

import os
import random
import signal
import time
from typing import Final

from benchmarks.chaos.faults.fault import Hit, Kind
from benchmarks.chaos.rig import ATTACHED, LAUNCHED, READY_S, Rig
from qlm.agents.engines.guard import descendants

DOWN_MAX_S: Final = 3.0
"""Longest time from a kill to the restart; the time is drawn."""


def gateway(rig: Rig, rng: random.Random) -> Hit:
    """Kill one of the gateways."""
    number = rng.randrange(len(rig.parts.gateways))
    process = rig.parts.gateways[number]
    process.kill()
    _stay_down(rng)
    process.start()
    return Hit(target=f"gateway-{number}")


def controller(rig: Rig, rng: random.Random) -> Hit:
    """Kill the leading controller."""
    process = rig.leading_controller()
    assert process is not None, "no controller led before the fault"
    process.kill()
    _stay_down(rng)
    process.start()
    return Hit(target="controller" if process is rig.parts.controller else "standby")


def agent(rig: Rig, rng: random.Random) -> Hit:
    """Kill one of the agents, but not its engine."""
    name = rng.choice(sorted(rig.parts.agents))
    process = rig.parts.agents[name]
    process.kill()
    _stay_down(rng)
    process.start()
    return Hit(target=name)


def engine(rig: Rig, rng: random.Random) -> Hit:
    """Kill one of the engines; its agent restarts it, but for the attached one."""
    name = rng.choice((*LAUNCHED, ATTACHED))
    if name == ATTACHED:
        rig.engine.kill()
        _stay_down(rng)
        rig.engine.start()
    else:
        _guard, process, *_ = descendants(rig.parts.agents[name].pid)
        os.kill(process, signal.SIGKILL)
    return Hit(target=f"engine of {name}")


def redis(rig: Rig, rng: random.Random) -> Hit:
    """Kill Redis; it restarts from its append-only file."""
    rig.redis.kill()
    _stay_down(rng)
    rig.redis.start(timeout_s=READY_S)
    return Hit(target="redis")


def rabbitmq(rig: Rig, rng: random.Random) -> Hit:
    """Kill RabbitMQ."""
    rig.rabbitmq.kill()
    _stay_down(rng)
    rig.rabbitmq.start(timeout_s=READY_S)
    return Hit(target="rabbitmq")


def deletion(rig: Rig, rng: random.Random) -> Hit:
    """Delete everything in Redis."""
    rig.empty_redis()
    return Hit(target="redis emptied")


def deletion_and_agent(rig: Rig, rng: random.Random) -> Hit:
    """Delete everything in Redis, and kill an agent at once."""
    rig.empty_redis()
    return Hit(target=f"and {agent(rig, rng).target}")


KILLS: Final = (
    Kind(name="gateway", group="kill", strike=gateway),
    Kind(name="controller", group="kill", strike=controller),
    Kind(name="agent", group="kill", strike=agent),
    Kind(name="engine", group="kill", strike=engine),
    Kind(name="redis", group="kill", strike=redis),
    Kind(name="rabbitmq", group="kill", strike=rabbitmq),
    Kind(name="flush+agent", group="flush", strike=deletion_and_agent, deletes=True),
    Kind(name="flush+crowd", group="flush", strike=deletion, deletes=True, crowd=True),
)


def _stay_down(rng: random.Random) -> None:
    time.sleep(rng.uniform(0.0, DOWN_MAX_S))
