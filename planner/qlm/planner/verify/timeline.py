"""Start of each group of a queue, by the timing of design section 5."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from qlm.domain.ids import GroupId
from qlm.planner.problem import GroupTime, Instance, Kind, Plan, PlannedGroup
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.rct_estimator.normal import NOTHING, Normal

Swap = Literal["warm", "cold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One group at its place.

    Attributes:
        place: Place in the queue, from 0.
        swap: Model change before it, if there is one.
        swap_s: Unloading and loading before it, seconds.
        waits_for_tail: Tail of its predecessor, for which only a model change waits.
        start: Time when its first request leaves the queue; seconds from now.
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
        """Times of the group on this instance."""
        return self.group.time[self.instance.kind]

    def completion(self, share: float = 1.0) -> Normal:
        """Return the completion of the request at a share of the group (1 for the last request).

        C_r = start + (r/n) service + tail; the variances add.
        """
        return self.start + self.time.service.scaled(share) + self.time.tail


def timeline(kind: Kind, instance: Instance, queue: Sequence[PlannedGroup]) -> Iterator[Served]:
    """Serve groups one after the other on an instance.

    A model change waits for the tail of the predecessor, unloads the old model and loads the new one: from
    host memory if it was in `warm_models`, loaded at first, or used before.
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
        now, tail = now + time.service, time.tail


def serve(index: ProblemIndex, plan: Plan) -> list[Served]:
    """Serve all queues of a plan, in order of the instances' ids.

    Unknown instances and groups, groups that do not run there, and repeated groups are left out; `violations`
    names them.
    """
    served: list[Served] = []
    seen: set[GroupId] = set()
    for id, instance in index.instances.items():
        queue = []
        for name in plan.queues.get(id, ()):
            group = index.groups.get(name)
            if group is not None and name not in seen and index.runs(instance, group):
                seen.add(name)
                queue.append(group)
        served.extend(timeline(index.problem.kinds[instance.kind], instance, queue))
    return served
