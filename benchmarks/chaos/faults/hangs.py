"""Kind `hang`: an engine that its agent started hangs while its health probe answers."""

import random
import time
from functools import partial
from typing import Final

from benchmarks.chaos.faults.fault import Hit, Kind, waited
from benchmarks.chaos.rig import LAUNCHED, Rig
from support.hung_engines import engine_of, hang

REPLACED_S: Final = 90.0
"""Time in which the agent must have replaced an engine that hangs."""

SLOW_S: Final = 10.0
STAYS: Final = ("one_stuck", "slow")
"""Modes after which the same process may go on."""


def strike(mode: str, rig: Rig, rng: random.Random) -> Hit:
    """Let an engine hang, and wait until its agent has replaced it."""
    name = rng.choice(LAUNCHED)
    agent = rig.parts.agents[name]
    port, pid = engine_of(agent.pid, name)
    hang(mode, port, pid)
    if mode == "slow":
        time.sleep(SLOW_S)
        hang("none", port, pid)
    if mode in STAYS or waited(lambda: _replaced(agent.pid, name, pid), REPLACED_S):
        return Hit(target=f"engine of {name}")
    return Hit(target=f"engine of {name}", unkept=f"{name} kept an engine that hangs ({mode})")


def _replaced(agent_pid: int, name: str, pid: int) -> bool:
    try:
        return engine_of(agent_pid, name)[1] != pid
    except RuntimeError:
        return False


HANGS: Final = tuple(
    Kind(name=f"hang-{mode}", group="hang", strike=partial(strike, mode))
    for mode in ("no_admission", "no_tokens", "one_stuck", "garbage", "half_closed", "slow")
)
