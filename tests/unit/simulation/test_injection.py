"""Failures of every kind at every call of every shell: each costs at most the request that it hit."""

from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from qlm.agents.shell.side_effects import TRIES_MAX
from simulation.injection import EVERY, NOT_CALLS, Failure, Injector, Site, When, errors_of
from simulation.parts import Parts
from simulation.trial import run_trial
from support.port_operations import OF_BATCHES, OF_OTHERS, OF_ROUTES, called, operations
from support.port_operations import PORTS as PORT_PROTOCOLS

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

TROUBLED = (4, 8, 1, 7, 11, 16, 36, 806)
"""Seeds whose drawn faults lead through the recovery of all shells: what a quiet run never calls."""

RECOVERIES = {
    ("controller", "broker"): {"ack", "get", "publish", "requeue"},
    ("controller", "store"): {"end_waiting", "enqueue", "waiting"},
    ("gateway", "store"): {"indexed", "unwatch", "withdraw"},
    ("gpu", "broker"): {"publish", "requeue"},
    ("gpu", "engine"): {"abort", "healthy", "sleep", "wake"},
    ("gpu", "store"): {"demote", "park", "release", "report_refused_agent", "reregister", "resume"},
    ("gpu", "unit"): {"close", "stop"},
}
"""Operations that only these runs call."""

OPERATION_OUTAGE_MAX = 5
PORT_OUTAGE_MAX = 30
"""Calls in a row that fail, at most: silent requests are looked up every 4 s, and clients wait for 35 s."""

HIT = "bad ends have a reason"
"""The only claim that a failure may break: the request of the failed call ends with an error."""


@cache
def calls() -> dict[Site, int]:
    """Return all calls of an undisturbed run, by site."""
    injector = Injector()
    trial = run_trial(SEED, Parts(wrap=injector.wrap), requests=REQUESTS, with_faults=False)
    assert not trial.violations
    return dict(injector.calls)


@cache
def recoveries() -> dict[Site, tuple[int, int]]:
    """Return the sites that a quiet run does not call: the first troubled seed that does, and its calls."""
    found: dict[Site, tuple[int, int]] = {}
    for seed in TROUBLED:
        injector = Injector()
        assert not run_trial(seed, Parts(wrap=injector.wrap), requests=REQUESTS).violations
        new = {site: (seed, count) for site, count in injector.calls.items() if site not in calls()}
        found = new | found
    return found


def drawn(seed: int, site: Site, count: int) -> Iterator[Failure]:
    """Yield one failure of each kind before and after one drawn call of a site."""
    for error in errors_of(site):
        for when in When:
            first = Random(f"{seed} {site} {error.__name__} {when}").randrange(count)
            yield Failure(site, error, when, first, count=1)


def failures(part: str, port: str) -> Iterator[Failure]:
    """Yield the failures of all calls that a quiet run makes on a port."""
    for site, count in sorted(calls().items()):
        if (site.part, site.port) == (part, port):
            yield from drawn(SEED, site, count)


def broken_by(failure: Failure, seed: int = SEED, *, with_faults: bool = False) -> list[str]:
    """Run a trial with one failure; return the violations that it must not cause."""
    injector = Injector(failure)
    trial = run_trial(seed, Parts(wrap=injector.wrap), requests=REQUESTS, with_faults=with_faults)
    ends = [each for each in trial.violations if each.startswith(HIT)]
    others = [each for each in trial.violations if not each.startswith(HIT)]
    return others + (ends if len(ends) > injector.hits else [])


def outages(part: str, port: str) -> Iterator[Failure]:
    """Yield failures of several calls in a row, after which all work: of each operation, and of the port."""
    sites = {site: count for site, count in calls().items() if (site.part, site.port) == (part, port)}
    for site, count in sorted(sites.items()):
        yield from in_a_row(site, count, OPERATION_OUTAGE_MAX)
    yield from in_a_row(Site(part, port, EVERY), sum(sites.values()), PORT_OUTAGE_MAX)


def in_a_row(site: Site, count: int, calls_max: int) -> Iterator[Failure]:
    """Yield one failure of each kind of some calls in a row."""
    for error in errors_of(site):
        chance = Random(f"{SEED} {site} {error.__name__} in a row")
        # A bug lasts until a side effect is given up, and hits few after it.
        longest = TRIES_MAX + 1 if issubclass(error, ZeroDivisionError) else calls_max
        yield Failure(site, error, When.BEFORE, chance.randrange(count), chance.randint(2, longest))


def lines_of(broken: dict[Failure, list[str]]) -> str:
    """Return a line for each failure that broke something."""
    return "\n".join(f"{failure}: {wrong[0]}" for failure, wrong in broken.items())


def test_every_port_of_every_process_is_called() -> None:
    assert {(site.part, site.port) for site in calls()} == set(PORTS)


@pytest.mark.parametrize(("part", "port"), PORTS, ids=map("-".join, PORTS))
def test_a_failed_call_costs_at_most_its_own_request(part: str, port: str) -> None:
    tried = list(failures(part, port))
    assert tried
    broken = {failure: wrong for failure in tried if (wrong := broken_by(failure))}
    assert not broken, lines_of(broken)


@pytest.mark.parametrize(("part", "port"), PORTS, ids=map("-".join, PORTS))
def test_calls_that_fail_again_and_again_cost_at_most_their_own_requests(part: str, port: str) -> None:
    broken = {failure: wrong for failure in outages(part, port) if (wrong := broken_by(failure))}
    assert not broken, lines_of(broken)


def test_troubled_runs_make_the_calls_of_recovery() -> None:
    found = {(site.part, site.port, site.operation) for site in recoveries()}
    assert found >= {(*port, each) for port, operations in RECOVERIES.items() for each in operations}


@pytest.mark.parametrize("port", PORT_PROTOCOLS)
def test_each_operation_of_a_port_has_a_test_that_lets_it_fail(port: str) -> None:
    """A new operation fails here until one of the trials calls it, or the table names another test."""
    tried = called(port, (site.operation for site in (*calls(), *recoveries()) if site.port == port))
    elsewhere = [each.get(port, set()) for each in (OF_ROUTES, OF_BATCHES, OF_OTHERS)]
    assert not set.intersection(tried, set().union(*elsewhere)), "the table names what trials call"
    assert operations(port) - NOT_CALLS == tried.union(*elsewhere)


@pytest.mark.parametrize("seed", TROUBLED)
def test_the_end_of_an_engine_is_noticed_although_waits_for_it_failed(seed: int) -> None:
    waits = list(drawn(seed, Site("gpu", "unit", "wait_failed"), 3))
    broken = {failure: wrong for failure in waits if (wrong := broken_by(failure, seed, with_faults=True))}
    assert not broken, lines_of(broken)


@pytest.mark.parametrize(("part", "port"), RECOVERIES, ids=map("-".join, RECOVERIES))
def test_a_failed_call_of_recovery_costs_at_most_its_own_request(part: str, port: str) -> None:
    broken: dict[Failure, list[str]] = {}
    for site, (seed, count) in sorted(recoveries().items()):
        for failure in drawn(seed, site, count) if (site.part, site.port) == (part, port) else ():
            if wrong := broken_by(failure, seed, with_faults=True):
                broken[failure] = wrong
    assert not broken, lines_of(broken)
