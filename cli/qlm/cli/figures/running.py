"""Simulation of a figure: all arms with the same requests of the same seeds."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from qlm.cli.figures.figure import SCENARIOS, Arm, Figure, Row
from qlm.cli.figures.measures import measured
from qlm.cli.figures.saturation import served_when_full
from qlm.cli.runtime.wiring import GIB
from qlm.cli.scenario.file import load_scenario
from qlm.simulator.cluster.event_queue import EPOCH_NS
from qlm.simulator.policies import POLICIES
from qlm.simulator.results import SimulationResult
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.simulation import SimulationObserver, simulate


class TokenTimes(SimulationObserver):
    """Times of the tokens of each request.

    Attributes:
        times_s: By number of the request, seconds from its arrival.
    """

    def __init__(self, workload: Workload) -> None:
        self.times_s: list[list[float]] = [[] for _ in range(len(workload))]
        self._arrivals_ns: list[int] = workload.arrival_ns.tolist()

    def on_output(self, number: int, tokens: int, at_ns: int) -> None:
        """Spread the tokens of a report evenly since the one before."""
        times_s = self.times_s[number]
        at_s = (at_ns - EPOCH_NS - self._arrivals_ns[number]) / 1e9
        begin_s = times_s[-1] if times_s else at_s
        times_s += [begin_s + (at_s - begin_s) * (each + 1) / tokens for each in range(tokens)]


def run(
    figure: Figure, seeds: tuple[int, ...], on_run: Callable[[str], None], *, requests: int | None = None
) -> Iterator[Row]:
    """Yield the rows of a figure, arm by arm.

    Args:
        figure: The figure.
        seeds: Seeds of all randomness.
        requests: Only the first ones; None for all.
        on_run: Receives the name of each simulation before it starts.
    """
    figure = figure.up_to(requests)
    for seed in seeds:
        unit = 1.0
        if figure.loads:
            on_run(f"seed {seed}: what {figure.arms[0].name} serves")
            unit = saturation(figure, seed)
        for point in figure.points:
            for arm in figure.arms:
                on_run(f"seed {seed}, {figure.axis or 'load'} {point:g}: {arm.name}")
                scenario = arm_scenario(figure, arm, point, unit_rps=unit, requests=requests)
                observer = TokenTimes(scenario.make_workload(Seeds(seed)))
                result = _simulated(scenario, seed, observer)
                yield Row(point, arm.name, seed, measured(result, observer.times_s))


def simulations(figure: Figure, seeds: Sequence[int]) -> int:
    """Return how many simulations `run` reports."""
    return len(seeds) * (bool(figure.loads) + len(figure.points) * len(figure.arms))


def arm_scenario(
    figure: Figure, arm: Arm, point: float, *, unit_rps: float = 1.0, requests: int | None = None
) -> Scenario:
    """Return what one arm serves at one point.

    Args:
        figure: The figure.
        arm: The arm.
        point: Load, or requests at once.
        unit_rps: Requests per second of load 1.
        requests: Only the first ones; None for all.
    """
    scenario = _scenario(figure, arm, point * unit_rps if figure.loads else 1.0)
    return _cut(figure, scenario, point, requests)


def saturation(figure: Figure, seed: int) -> float:
    """Return the requests per second that the first arm serves while its batch is full."""
    scenario = _scenario(figure, figure.arms[0], 1.0)
    every = figure.requests or len(scenario.make_workload(Seeds(seed)))
    result = _simulated(_at_once(scenario, every), seed, SimulationObserver())
    return served_when_full(result.outcomes.first_token_ns, result.outcomes.ended_ns)


def _scenario(figure: Figure, arm: Arm, load: float) -> Scenario:
    scenario = load_scenario(SCENARIOS / figure.scenario, load=load)
    host_kv_bytes = scenario.host_kv_bytes if arm.host_kv_gib is None else round(arm.host_kv_gib * GIB)
    instances = tuple(replace(each, batching=arm.batching) for each in scenario.instances)
    profiles = {
        key: replace(
            each,
            kv_tokens=figure.kv_tokens or each.kv_tokens,
            seqs_max=figure.seqs_max or each.seqs_max,
        )
        for key, each in scenario.fleet.profiles.items()
    }
    fleet = replace(scenario.fleet, profiles=profiles)
    return replace(
        scenario,
        instances=instances,
        fleet=fleet,
        host_kv_bytes=host_kv_bytes,
        kv_offloading=arm.offloading,
    )


def _cut(figure: Figure, scenario: Scenario, point: float, requests: int | None) -> Scenario:
    """Keep the first requests: of the figure, of this point, or as many as were asked for."""
    limits = (requests, figure.requests, int(point) if figure.at_once else None)
    most = min((each for each in limits if each is not None), default=None)
    if most is None:
        return scenario
    if figure.at_once:
        return _at_once(scenario, most)
    return replace(scenario, make_workload=lambda seeds: scenario.make_workload(seeds).first(most))


def _at_once(scenario: Scenario, requests: int) -> Scenario:
    """Let the first requests arrive at the start, in their order."""

    def workload(seeds: Seeds) -> Workload:
        drawn = scenario.make_workload(seeds).first(requests)
        return replace(drawn, arrival_ns=np.zeros_like(drawn.arrival_ns))

    return replace(scenario, make_workload=workload)


def _simulated(scenario: Scenario, seed: int, observer: SimulationObserver) -> SimulationResult:
    # First come, first served before the instance: what differs is the batch policy alone.
    return simulate(scenario, POLICIES["fcfs"], seed, stopwatch_s=time.perf_counter, observer=observer)
