"""Simulation of one scenario under one policy with one seed; returns the outcome of each request."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from qlm.agents.core.scheduling.visits.backlog import Patience
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.progress import WatchSettings
from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState
from qlm.controller.core.history.history import recalled
from qlm.domain.group import RequestClass
from qlm.simulator.cluster.clients import Clients
from qlm.simulator.cluster.controller import SimulatedController
from qlm.simulator.cluster.event_queue import EPOCH_NS, EventQueue
from qlm.simulator.cluster.faults import last_step_s, schedule_faults
from qlm.simulator.cluster.fleet import SimulatedFleet
from qlm.simulator.cluster.observer import ClusterObserver
from qlm.simulator.cluster.services import SharedServices
from qlm.simulator.history import past_history
from qlm.simulator.policies import Policy
from qlm.simulator.results import Outcomes, SimulationResult
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.seeds import Seeds

STALLED_S: Final = 3600.0
"""Time without an arrival, a token or an end after the last fault, after which the simulation stops."""

_NEVER_NS: Final = 1 << 62

_PROGRESS_EVENTS: Final = 20_000
"""Events between two progress reports."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a simulation.

    Attributes:
        ended: Requests that have ended or were refused.
        requests: All requests.
        simulated_s: Virtual seconds.
    """

    ended: int
    requests: int
    simulated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The parts of a running simulation, as observers see them."""

    scenario: Scenario
    workload: Workload
    services: SharedServices
    clients: Clients
    fleet: SimulatedFleet
    controller: SimulatedController


class SimulationObserver(ClusterObserver):
    """Observer that also receives the simulation before its first event."""

    def on_start(self, simulation: Simulation) -> None:
        """Prepare for the run."""


def simulate(
    scenario: Scenario,
    policy: Policy,
    seed: int,
    *,
    stopwatch_s: Callable[[], float],
    on_progress: Callable[[Progress], None] = lambda progress: None,
    observer: SimulationObserver | None = None,
) -> SimulationResult:
    """Run one simulation.

    Args:
        scenario: Cluster, workload and faults.
        policy: Planner and rules of the agents.
        seed: Source of all randomness; equal seeds give equal outcomes.
        stopwatch_s: Steady clock; it measures only and decides nothing.
        on_progress: Called about every 20 000 events.
        observer: Receives what happens.
    """
    began_s = stopwatch_s()
    observer = observer or SimulationObserver()
    simulation, outcomes = _assemble(scenario, policy, seed, stopwatch_s, observer)
    observer.on_start(simulation)
    simulation.fleet.start()
    simulation.controller.start()
    simulation.clients.start()
    event_queue = simulation.services.event_queue
    with _without_cycle_collector():
        _run(simulation, scenario.horizon_s, on_progress)
    simulation.fleet.finish()
    return SimulationResult(
        scenario=scenario,
        workload=simulation.workload,
        policy=policy.name,
        seed=seed,
        outcomes=outcomes,
        instances=tuple(each.id for each in simulation.fleet.instances),
        swaps_warm=simulation.fleet.swaps_warm,
        swaps_reload=simulation.fleet.swaps_reload,
        swaps_cold=simulation.fleet.swaps_cold,
        swap_seconds=simulation.fleet.swap_seconds,
        prefix_hits=simulation.fleet.prefix_hits,
        operations=simulation.fleet.operations,
        gpu_times=simulation.fleet.gpu_times,
        intervals=simulation.fleet.intervals,
        moves=simulation.controller.moves,
        planner_failures=simulation.controller.planner_failures.total(),
        plan_s=simulation.controller.plan_s,
        events=event_queue.events,
        simulated_s=event_queue.now_s,
        wall_s=stopwatch_s() - began_s,
    )


@contextmanager
def _without_cycle_collector() -> Iterator[None]:
    """Switch the cycle collector off: ended requests are in no cycle, and it takes 7 % of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _assemble(
    scenario: Scenario, policy: Policy, seed: int, stopwatch_s: Callable[[], float], observer: ClusterObserver
) -> tuple[Simulation, Outcomes]:
    scenario = replace(scenario, fleet=replace(scenario.fleet, bounds_readers=policy.bounds_readers))
    workload = scenario.make_workload(Seeds(seed))
    services = SharedServices(EventQueue(), scenario.network)
    outcomes = Outcomes.of(len(workload))
    clients = Clients(services, scenario, workload, policy, outcomes, observer)
    settings = AgentSettings(
        append_interval_s=scenario.append_interval_s,
        append_at_once_max=0,
        ends_apart=False,
        preempts=policy.evicts,
        demotes=policy.demotes,
        limits_concurrency=policy.limits_batch,
        swap_idle_s=policy.swap_idle_s,
        bounds_readers=policy.bounds_readers,
        visits=policy.visits,
        late_weight=policy.late_weight,
        prefetches=policy.warms_ahead,
        # Simulated engines report tokens of 16 iterations at once, and faults make them slower.
        watch=WatchSettings(silence_s=30.0),
    )
    fleet = SimulatedFleet(services, scenario, workload, clients, settings, observer)
    controller = SimulatedController(
        services,
        [each.id for each in fleet.instances],
        fleet=scenario.fleet,
        settings=replace(
            scenario.controller,
            demotes=policy.demotes,
            swap_hysteresis=policy.swap_idle_s > 0 and not policy.visits,
            balances=policy.balances,
            places=policy.places,
            patience=Patience(settings.patience_s, settings.late_weight) if policy.visits else None,
            clusters=policy.clusters,
            strands=policy.strands,
        ),
        planner=policy.make_planner(seed),
        stopwatch_s=stopwatch_s,
        observer=observer,
        on_applied=lambda decision: fleet.explain_idle(decision.problem, decision.plan),
        estimator=_learned(scenario, policy, seed),
    )
    schedule_faults(scenario.faults, services, fleet, controller)
    simulation = Simulation(
        scenario=scenario,
        workload=workload,
        services=services,
        clients=clients,
        fleet=fleet,
        controller=controller,
    )
    return simulation, outcomes


def _learned(scenario: Scenario, policy: Policy, seed: int) -> EstimatorState:
    """Return what the controller knows at the start."""
    if scenario.past is None:
        return NOTHING_LEARNED
    past = scenario.past.make_workload(Seeds(seed))
    if not len(past):
        return NOTHING_LEARNED

    def classify(model: int, slo_class: int) -> RequestClass:
        slo = scenario.slo_classes[slo_class]
        return policy.classify(scenario.models[model].id, slo.slo, slo.priority)

    return recalled(past_history(scenario.past, past, classify, EPOCH_NS), EPOCH_NS)


def _run(simulation: Simulation, horizon_s: float | None, on_progress: Callable[[Progress], None]) -> None:
    """Run events until all requests have ended, the horizon is reached, or the simulation has stalled."""
    event_queue, clients = simulation.services.event_queue, simulation.clients
    end_ns = _NEVER_NS if horizon_s is None else EPOCH_NS + round(horizon_s * 1e9)
    requests, stalled_ns, look_ns = clients.unfinished, round(STALLED_S * 1e9), 0
    # An instance that is down may restart until the last step of the faults.
    calm_ns = EPOCH_NS + round(max(map(last_step_s, simulation.scenario.faults), default=0.0) * 1e9)
    while clients.unfinished and (next_ns := event_queue.next_ns) is not None and next_ns <= end_ns:
        if next_ns > look_ns:
            last_ns = max(clients.last_ns, calm_ns)
            if next_ns - last_ns > stalled_ns and clients.submitted == requests:
                break
            look_ns = max(next_ns, last_ns + stalled_ns)
        event_queue.run(min(end_ns, look_ns), _PROGRESS_EVENTS)
        on_progress(Progress(requests - clients.unfinished, requests, event_queue.now_s))
    on_progress(Progress(requests - clients.unfinished, requests, event_queue.now_s))
