"""Kind `stop`: SIGSTOP of a process for longer than its lease, then SIGCONT."""

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from benchmarks.chaos.faults.fault import Hit, Kind, last_a_while
from benchmarks.chaos.rig import ATTACHED, LAUNCHED, Rig
from support.hung_engines import engine_of


def gateway(rig: Rig, rng: random.Random) -> tuple[str, int]:
    """Choose one of the gateways."""
    number = rng.randrange(len(rig.parts.gateways))
    return f"gateway-{number}", rig.parts.gateways[number].pid


def controller(rig: Rig, rng: random.Random) -> tuple[str, int]:
    """Choose the leading controller."""
    process = rig.leading_controller()
    assert process is not None, "no controller led before the fault"
    return process.name, process.pid


def agent(rig: Rig, rng: random.Random) -> tuple[str, int]:
    """Choose one of the agents."""
    name = rng.choice(sorted(rig.parts.agents))
    return name, rig.parts.agents[name].pid


def engine(rig: Rig, rng: random.Random) -> tuple[str, int]:
    """Choose one of the engines."""
    name = rng.choice((*LAUNCHED, ATTACHED))
    pid = rig.engine.pid if name == ATTACHED else engine_of(rig.parts.agents[name].pid, name)[1]
    return f"engine of {name}", pid


def redis(rig: Rig, rng: random.Random) -> tuple[str, int]:
    """Choose Redis."""
    return "redis", rig.redis.pid


def rabbitmq(rig: Rig, rng: random.Random) -> tuple[str, int]:
    """Choose RabbitMQ."""
    return "rabbitmq", rig.rabbitmq.pid


Choose = Callable[[Rig, random.Random], tuple[str, int]]


def strike(choose: Choose, rig: Rig, rng: random.Random) -> Hit:
    """Stop the chosen process for a while."""
    target, pid = choose(rig, rng)
    with _stopped(pid, group=target in ("redis", "rabbitmq")):
        last_a_while(rng)
    return Hit(target=target)


@contextlib.contextmanager
def _stopped(pid: int, *, group: bool) -> Iterator[None]:
    """Stop a process, or its group, for the time of the block; its agent may have killed it by then."""
    send = os.killpg if group else os.kill
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            send(pid, signal.SIGCONT)


STOPS: Final = tuple(
    Kind(name=f"stop-{choose.__name__}", group="stop", strike=partial(strike, choose))
    for choose in (gateway, controller, agent, engine, redis, rabbitmq)
)
