"""Looks at the simulated cluster now and then, for pictures."""

from qlm.controller.protocol import Decision
from qlm.domain.ids import GroupId, InstanceId
from qlm.simulator.results import Sample
from qlm.simulator.simulation import Onlooker, World
from qlm.simulator.world.timeline import Rank


class Sampler(Onlooker):
    """Takes a sample every so often.

    Attributes:
        samples: What was seen.
    """

    def __init__(self, every_s: float) -> None:
        self.samples: list[Sample] = []
        self._every_ns = round(every_s * 1e9)
        self._first: dict[InstanceId, GroupId] = {}

    def begin(self, world: World) -> None:
        """Take the first sample when everything has come up."""
        self._index = {model.id: number for number, model in enumerate(world.scenario.models)}
        self._parts = world.parts
        self._fleet = world.fleet
        world.parts.timeline.at(world.parts.timeline.now_ns, Rank.CONTROLLER, 1, self._sample)

    def decided(self, decision: Decision) -> None:
        """Note the first group of each queue."""
        self._first = {instance: queue[0] for instance, queue in decision.plan.queues.items() if queue}

    def _sample(self, _: object) -> None:
        fleet, timeline = self._fleet, self._parts.timeline
        numbers = range(len(fleet.instances))
        waiting = [0] * len(self._index)
        for each in self._parts.store.view(timeline.now_ns).classes:
            waiting[self._index[each.cls.model]] += each.queued
        self.samples.append(
            Sample(
                at_s=timeline.now_s,
                waiting=waiting,
                running=[fleet.running(number) for number in numbers],
                kv_usage=[fleet.kv_usage(number) for number in numbers],
                awake=[fleet.awake(number) for number in numbers],
                first_group=[self._first.get(instance.id, "") for instance in fleet.instances],
            )
        )
        timeline.at(timeline.now_ns + self._every_ns, Rank.CONTROLLER, 1, self._sample)
