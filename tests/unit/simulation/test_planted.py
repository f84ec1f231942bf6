"""Each planted bug is found: the checkers and the faults are good for something."""

import pytest

from simulation.trial import run_trial
from support.planted import PLANTED

SEEDS_MAX = 1000

FOUND_BY = {
    "ack before store": "bad ends have a reason",  # of a request without a message: the controller ends it
    "no epoch check": "leases are fenced",
    "checkpoint after abort": "logs are right",
    "epoch reset by a loss": "leases are fenced",
    "two leaders": "one leader plans",
    "two agents of an instance": "one session serves",
    "a lost done record": "nothing is lost",
    "no watchdog": "stalls end",
    "a token repeated after a hang": "logs are right",
    "a store error not waited out": "nothing is lost",
    "a lost log taken for an empty one": "clients see the log",
}
"""A claim that each bug breaks."""


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str) -> None:
    for seed in range(SEEDS_MAX):
        broken = {each.partition(":")[0] for each in run_trial(seed, PLANTED[bug]).violations}
        if FOUND_BY[bug] in broken:
            return
    pytest.fail(f"{bug} was not found by {SEEDS_MAX} seeds")
