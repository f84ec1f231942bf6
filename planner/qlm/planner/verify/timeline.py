"""When each group of a queue starts, by the timing of design section 5."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from qlm.domain.ids import GroupId
from qlm.planner.problem import GroupTime, Instance, Kind, Plan, PlannedGroup
from qlm.planner.verify.placing import Places
from qlm.rct_estimator.normal import NOTHING, Normal

Swap = Literal["warm", "cold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One group at its place.

    Attributes:
        instance: Where it is served.
        group: The group.
        place: From 0.
        swap: The model change before it, if there is one.
        swap_s: Unloading and loading before it, seconds.
        waits_for_tail: The tail of its predecessor, for which only a model change waits.
        start: When its first request leaves the queue; seconds from now.
    """

    instance: Instance
    group: PlannedGroup
    place: int
    swap: Swap | None
    swap_s: float
    waits_for_tail: Normal
    start: Normal

    @property
    def time(self) -> GroupTime:
        """How long it takes here."""
        return self.group.time[self.instance.kind]

    def completion(self, share: float = 1.0) -> Normal:
        """When the request that has `share` of the group before and with it is answered.

        C_r = start + (r/n) drain + tail; the variances add.
        """
        return self.start + self.time.drain.scaled(share) + self.time.tail


def timeline(kind: Kind, instance: Instance, queue: Sequence[PlannedGroup]) -> Iterator[Served]:
    """Serve groups one after the other on an instance.

    Before a model change the predecessor counts with its tail, and the change with unloading the old model
    and bringing up the new one: from memory if it was in `warm_models`, loaded at first, or used before.

    Args:
        kind: The kind of the instance.
        instance: What is loaded and warm, and until when it is busy.
        queue: Groups that run there, in order.
    """
    now, tail, loaded = instance.busy, NOTHING, instance.loaded_model
    warm = {*instance.warm_models, loaded}
    for place, group in enumerate(queue):
        swap: Swap | None = None
        swap_s, waits_for_tail = 0.0, NOTHING
        if group.model != loaded:
            swap = "warm" if group.model in warm else "cold"
            cost = kind.models[group.model]
            old = None if loaded is None else kind.models.get(loaded)
            swap_s = cost.swap_warm_s if swap == "warm" else cost.swap_cold_s
            swap_s += 0.0 if old is None else old.unload_s
            waits_for_tail = tail
            now = now + tail + Normal(swap_s)
            loaded = group.model
            warm.add(loaded)
        yield Served(
            instance=instance,
            group=group,
            place=place,
            swap=swap,
            swap_s=swap_s,
            waits_for_tail=waits_for_tail,
            start=now,
        )
        time = group.time[instance.kind]
        now, tail = now + time.drain, time.tail


def serve(places: Places, plan: Plan) -> list[Served]:
    """Serve all queues of a plan, in order of the instances' ids.

    What cannot be served (unknown instances and groups, groups that do not run there or that were served
    before) is left out; `violations` names it.
    """
    served: list[Served] = []
    seen: set[GroupId] = set()
    for id, instance in places.instances.items():
        queue = []
        for name in plan.queues.get(id, ()):
            group = places.groups.get(name)
            if group is not None and name not in seen and places.runs(instance, group):
                seen.add(name)
                queue.append(group)
        served.extend(timeline(places.problem.kinds[instance.kind], instance, queue))
    return served
