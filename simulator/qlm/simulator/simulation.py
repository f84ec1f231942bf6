"""One simulation: a scenario, a policy and a seed in; what became of each request out."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from qlm.agents.protocol import AgentSettings
from qlm.simulator.policies import Policy
from qlm.simulator.results import Outcomes, SimulationResult
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.world.clients import Clients
from qlm.simulator.world.controller import SimulatedController
from qlm.simulator.world.faults import last_step_s, schedule_faults
from qlm.simulator.world.fleet import SimulatedFleet
from qlm.simulator.world.shared import SharedParts
from qlm.simulator.world.timeline import EPOCH_NS, Timeline
from qlm.simulator.world.watching import Watcher

STALLED_S: Final = 3600.0
"""If nothing arrives, comes out or ends for so long after the last fault, nothing ever will: the simulation
ends."""

_NEVER_NS: Final = 1 << 62

_TELL_EVERY: Final = 20_000
"""Events between two reports of progress."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a simulation is.

    Attributes:
        ended: Requests that have ended or were refused.
        requests: All requests.
        simulated_s: Virtual seconds.
    """

    ended: int
    requests: int
    simulated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The parts of a running simulation, for those who look on."""

    scenario: Scenario
    workload: Workload
    parts: SharedParts
    clients: Clients
    fleet: SimulatedFleet
    controller: SimulatedController


class Onlooker(Watcher):
    """A watcher that is shown the world before anything happens in it."""

    def begin(self, world: World) -> None:
        """Get ready."""


def simulate(
    scenario: Scenario,
    policy: Policy,
    seed: int,
    *,
    stopwatch_s: Callable[[], float],
    tell: Callable[[Progress], None] = lambda progress: None,
    onlooker: Onlooker | None = None,
) -> SimulationResult:
    """Run one simulation to its end.

    Args:
        scenario: What is simulated.
        policy: How it is served.
        seed: Of all randomness: equal seeds give equal outcomes.
        stopwatch_s: A steady clock; only measures, decides nothing.
        tell: Called now and then.
        onlooker: Watches.
    """
    began_s = stopwatch_s()
    onlooker = onlooker or Onlooker()
    world, outcomes = _world(scenario, policy, seed, stopwatch_s, onlooker)
    onlooker.begin(world)
    world.fleet.start()
    world.controller.start()
    world.clients.start()
    timeline = world.parts.timeline
    with _no_search_for_cycles():
        _run(world, scenario.horizon_s, tell)
    world.fleet.finish()
    return SimulationResult(
        scenario=scenario,
        workload=world.workload,
        policy=policy.name,
        seed=seed,
        outcomes=outcomes,
        instances=tuple(each.id for each in world.fleet.instances),
        swaps_warm=world.fleet.swaps_warm,
        swaps_reload=world.fleet.swaps_reload,
        swaps_cold=world.fleet.swaps_cold,
        swap_seconds=world.fleet.swap_seconds,
        operations=world.fleet.operations,
        moves=world.controller.moves,
        plan_s=world.controller.plan_s,
        events=timeline.events,
        simulated_s=timeline.now_s,
        wall_s=stopwatch_s() - began_s,
    )


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Leave memory to reference counts: what ends here is in no cycle, and looking for some takes 7 %."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _world(
    scenario: Scenario, policy: Policy, seed: int, stopwatch_s: Callable[[], float], watcher: Watcher
) -> tuple[World, Outcomes]:
    workload = scenario.make_workload(Seeds(seed))
    parts = SharedParts(Timeline(), scenario.network)
    outcomes = Outcomes.of(len(workload))
    clients = Clients(parts, scenario, workload, policy, outcomes, watcher)
    settings = AgentSettings(
        append_interval_s=scenario.append_interval_s,
        evicts=policy.evicts,
        demotes=policy.demotes,
        limits_batch=policy.limits_batch,
        swap_idle_s=policy.swap_idle_s,
        warms_ahead=policy.warms_ahead,
    )
    fleet = SimulatedFleet(parts, scenario, workload, clients, settings, watcher)
    controller = SimulatedController(
        parts,
        [each.id for each in fleet.instances],
        fleet=scenario.fleet,
        settings=replace(
            scenario.controller,
            demotes=policy.demotes,
            stays=policy.swap_idle_s > 0,
            balances=policy.balances,
        ),
        planner=policy.make_planner(seed),
        stopwatch_s=stopwatch_s,
        watcher=watcher,
    )
    schedule_faults(scenario.faults, parts, fleet, controller)
    world = World(
        scenario=scenario,
        workload=workload,
        parts=parts,
        clients=clients,
        fleet=fleet,
        controller=controller,
    )
    return world, outcomes


def _run(world: World, horizon_s: float | None, tell: Callable[[Progress], None]) -> None:
    """Let events happen until all requests have ended, the horizon comes, or nothing comes any more."""
    timeline, clients = world.parts.timeline, world.clients
    end_ns = _NEVER_NS if horizon_s is None else EPOCH_NS + round(horizon_s * 1e9)
    requests, stalled_ns, look_ns = clients.unfinished, round(STALLED_S * 1e9), 0
    # An instance that is down may come back.
    calm_ns = EPOCH_NS + round(max(map(last_step_s, world.scenario.faults), default=0.0) * 1e9)
    while clients.unfinished and (next_ns := timeline.next_ns) is not None and next_ns <= end_ns:
        if next_ns > look_ns:
            last_ns = max(clients.last_ns, calm_ns)
            if next_ns - last_ns > stalled_ns and clients.submitted == requests:
                break
            look_ns = max(next_ns, last_ns + stalled_ns)
        timeline.run(min(end_ns, look_ns), _TELL_EVERY)
        tell(Progress(requests - clients.unfinished, requests, timeline.now_s))
    tell(Progress(requests - clients.unfinished, requests, timeline.now_s))
