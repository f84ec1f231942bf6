"""Failures of every kind at every call of every shell: each costs at most the request that it hit."""

from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from simulation.injection import Failure, Injector, Site, When, errors_of
from simulation.parts import Parts
from simulation.trial import run_trial

SEED = 1
REQUESTS = 60

PORTS = (
    ("gateway", "store"),
    ("gateway", "broker"),
    ("controller", "store"),
    ("controller", "broker"),
    ("gpu", "store"),
    ("gpu", "broker"),
    ("gpu", "engine"),
    ("gpu", "unit"),
)

HIT = "bad ends have a reason"
"""The only claim that a failure may break: the request of the failed call ends with an error."""


@cache
def calls() -> dict[Site, int]:
    """Return all calls of an undisturbed run, by site."""
    injector = Injector()
    trial = run_trial(SEED, Parts(wrap=injector.wrap), requests=REQUESTS, with_faults=False)
    assert not trial.violations
    return dict(injector.calls)


def failures(part: str, port: str) -> Iterator[Failure]:
    """Yield one failure of each kind before and after one drawn call of each operation of a port."""
    for site, count in sorted(calls().items()):
        if (site.part, site.port) != (part, port):
            continue
        for error in errors_of(site):
            for when in When:
                first = Random(f"{SEED} {site} {error.__name__} {when}").randrange(count)
                yield Failure(site, error, when, first, count=1)


def broken_by(failure: Failure) -> list[str]:
    """Run a trial with one failure; return the violations that it must not cause."""
    injector = Injector(failure)
    trial = run_trial(SEED, Parts(wrap=injector.wrap), requests=REQUESTS, with_faults=False)
    ends = [each for each in trial.violations if each.startswith(HIT)]
    others = [each for each in trial.violations if not each.startswith(HIT)]
    return others + (ends if len(ends) > injector.hits else [])


def test_every_port_of_every_process_is_called() -> None:
    assert {(site.part, site.port) for site in calls()} == set(PORTS)


@pytest.mark.parametrize(("part", "port"), PORTS, ids="-".join)
def test_a_failed_call_costs_at_most_its_own_request(part: str, port: str) -> None:
    tried = list(failures(part, port))
    assert tried
    broken = {failure: wrong for failure in tried if (wrong := broken_by(failure))}
    assert not broken, "\n".join(f"{failure}: {wrong[0]}" for failure, wrong in broken.items())
