"""Waiting requests of a simulated cluster, for the account of idle time."""

import pytest

from qlm.controller.core.decide import Decision
from qlm.domain.ids import InstanceId, ModelId, RequestId
from qlm.simulator.cluster.clients import request_number
from qlm.simulator.cluster.waiting_work import WaitingWork
from qlm.simulator.scenario import Fault, KillEngine, KillInstance
from qlm.simulator.simulation import Simulation, SimulationObserver
from support.simulation import LARGE, SMALL, run, scenario, workload

A, B = ModelId("a"), ModelId("b")
R, Q = RequestId("r"), RequestId("q")


def test_a_request_waits_from_its_acceptance_to_its_start_and_after_an_interruption() -> None:
    work, changes = WaitingWork(), list[frozenset[ModelId]]()
    work.on_change = lambda: changes.append(frozenset(work.models()))
    work.published(R, A)
    work.published(Q, A)
    work.started(R)
    assert set(work.models()) == {A}
    work.started(Q)
    work.stopped(R)
    work.stopped(R)
    work.ended(R)
    work.ended(Q)
    assert changes == [{A}, set(), {A}, set()], "each first and last one of a model, and nothing twice"


def test_what_ends_is_forgotten() -> None:
    work = WaitingWork()
    work.published(R, B)
    work.ended(R)
    work.stopped(R)
    work.started(R)
    assert not work.models()


class Recount(SimulationObserver):
    """Counts the waiting requests anew with each plan, from the clients and the agents."""

    def __init__(self) -> None:
        self.counted = self.waited = 0

    def on_start(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def on_decided(self, decision: Decision) -> None:
        fleet, clients = self.simulation.fleet, self.simulation.clients
        agents = [agent for number in range(len(fleet.instances)) if (agent := fleet.agent(number))]
        busy = {request_number(call_id) for agent in agents for call_id in agent.state.requests.calls}
        busy |= {
            request_number(id)
            for agent in agents
            for id, tracked in agent.state.requests.all.items()
            if tracked.ended
        }
        models = {each.cls.model for number, each in clients._metadata.items() if number not in busy}
        assert set(self.simulation.services.waiting.models()) == models
        self.counted += 1
        self.waited += bool(models)


@pytest.mark.parametrize("policy", ["edf", "fcfs", "round-robin"])
def test_what_waits_is_what_no_engine_runs_whatever_is_killed(policy: str) -> None:
    observer = Recount()
    faults: tuple[Fault, ...] = (
        KillEngine(at_s=3.0, instance=InstanceId("i0")),
        KillInstance(at_s=5.0, instance=InstanceId("i1"), down_s=4.0),
    )
    subject = scenario(workload(120, rate_rps=15.0, models=2), models=(SMALL, LARGE), faults=faults)
    run(subject, policy=policy, observer=observer)
    assert observer.counted > 100 and observer.waited > 0
    assert not observer.simulation.services.waiting.models()
