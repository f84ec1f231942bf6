"""Periodic samples of the simulated cluster, for plots."""

from qlm.controller.core.decide import Decision
from qlm.domain.ids import GroupId, InstanceId
from qlm.simulator.cluster.event_queue import Rank
from qlm.simulator.results import Sample
from qlm.simulator.simulation import Simulation, SimulationObserver
from qlm.store.core.plans import view


class ClusterSampler(SimulationObserver):
    """Observer that takes a sample every `every_s` seconds.

    Attributes:
        samples: Samples in order of time.
    """

    def __init__(self, every_s: float) -> None:
        self.samples: list[Sample] = []
        self._every_ns = round(every_s * 1e9)
        self._first: dict[InstanceId, GroupId] = {}

    def on_start(self, simulation: Simulation) -> None:
        """Schedule the first sample after the start."""
        self._index = {model.id: number for number, model in enumerate(simulation.scenario.models)}
        self._services = simulation.services
        self._fleet = simulation.fleet
        simulation.services.event_queue.schedule(
            simulation.services.event_queue.now_ns, Rank.CONTROLLER, 1, self._sample
        )

    def on_decided(self, decision: Decision) -> None:
        """Keep the first group of each queue."""
        self._first = {instance: queue[0] for instance, queue in decision.plan.queues.items() if queue}

    def _sample(self, _: object) -> None:
        fleet, event_queue = self._fleet, self._services.event_queue
        numbers = range(len(fleet.instances))
        waiting = [0] * len(self._index)
        for each in view(self._services.state, event_queue.now_ns).classes:
            waiting[self._index[each.cls.model]] += each.queued
        self.samples.append(
            Sample(
                at_s=event_queue.now_s,
                waiting=waiting,
                running=[fleet.running(number) for number in numbers],
                kv_usage=[fleet.kv_usage(number) for number in numbers],
                awake=[fleet.awake(number) for number in numbers],
                first_group=[self._first.get(instance.id, "") for instance in fleet.instances],
            )
        )
        event_queue.schedule(event_queue.now_ns + self._every_ns, Rank.CONTROLLER, 1, self._sample)
