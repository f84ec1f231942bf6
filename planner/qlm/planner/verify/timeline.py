"""Start of each group of a queue, by the timing of design section 5."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import field

from qlm.domain.ids import GroupId
from qlm.domain.operations import SwapTier
from qlm.domain.values import value
from qlm.planner.problem import GroupTime, Instance, Kind, Plan, PlannedGroup
from qlm.planner.swapping.swaps import Sleeping, Swaps
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.rct_estimator.normal import NOTHING, Normal


@value
class Served:
    """One group at its place.

    Attributes:
        place: Place in the queue, from 0.
        swap: Tier of its model at the model change before it, if there is one.
        swap_s: Unloading and loading before it, seconds.
        waits_for_tail: Tail of its predecessor, for which only a model change waits; at the head of the queue
            what the change discards.
        start: Time when its first request leaves the queue; seconds from now.
        asleep: What sleeps in host memory while it is served.
        class_sd_s: Standard deviation of the start by the error that the group's class shares.
        speed_sd_s: Standard deviation of the start by the error of the instance's speed.
    """

    instance: Instance
    group: PlannedGroup
    place: int
    swap: SwapTier | None
    swap_s: float
    waits_for_tail: Normal
    start: Normal
    asleep: Sleeping = field(default_factory=lambda: Sleeping({}, {}))
    class_sd_s: float = 0.0
    speed_sd_s: float = 0.0

    @property
    def time(self) -> GroupTime:
        """Times of the group on this instance."""
        return self.group.time[self.instance.kind]

    def leaves(self, share: float = 1.0) -> Normal:
        """Return when the request at a share of the group leaves the queue (1 for the last request)."""
        return Normal(*self._leaves(share))

    def completion(self, share: float = 1.0) -> Normal:
        """Return the completion of the request at a share of the group: a tail after it leaves the queue."""
        time = self.time
        tail, by_speed = time.tail, time.tail_speed_sd_s
        mean, var = self._leaves(share)
        speed_sd_s = self.speed_sd_s + share * time.speed_sd_s
        return Normal(mean + tail.mean, var + tail.var + by_speed * (2.0 * speed_sd_s + by_speed))

    def _leaves(self, share: float) -> tuple[float, float]:
        """Return mean and variance of S + (r/n) service.

        Own variances add up; of a shared error the standard deviations do: from sd to sd + by, the variance
        grows by `by (2 sd + by)`.
        """
        start, time = self.start, self.time
        service, by_class, by_speed = time.service, share * time.class_sd_s, share * time.speed_sd_s
        return start.mean + service.mean * share, (
            start.var
            + service.var * share * share
            + by_class * (2.0 * self.class_sd_s + by_class)
            + by_speed * (2.0 * self.speed_sd_s + by_speed)
        )

    @property
    def cross_var(self) -> float:
        """Part of the variance of a completion that is linear in the share: twice a covariance.

        It is that of the service time with start and tail.
        """
        time = self.time
        of_class = self.class_sd_s * time.class_sd_s
        return 2.0 * (of_class + (self.speed_sd_s + time.tail_speed_sd_s) * time.speed_sd_s)


def timeline(
    kind: Kind, instance: Instance, queue: Sequence[PlannedGroup], swaps: Swaps | None = None
) -> Iterator[Served]:
    """Serve groups one after the other on an instance; those of one kind may share `swaps`.

    A model change waits for the tail of the predecessor, unloads the old model and loads the new one, from
    the tier in which that sleeps by then.
    """
    now, tail, loaded = instance.busy, Normal(instance.leave_s), instance.loaded_model
    swaps = swaps or Swaps(kind)
    asleep = swaps.at_first(instance)
    last: Served | None = None
    speed_sd_s = 0.0
    class_sd_s: defaultdict[str, float] = defaultdict(float)
    for place, group in enumerate(queue):
        swap: SwapTier | None = None
        swap_s, waits_for_tail = 0.0, NOTHING
        if group.model != loaded:
            swap, swap_s = asleep.tier_of(group.model), swaps.takes_s(asleep, loaded, group.model)
            waits_for_tail = tail
            now = (last.completion() if last else now + tail) + Normal(swap_s)
            speed_sd_s += last.time.tail_speed_sd_s if last else 0.0
            asleep = swaps.after(asleep, loaded, group.model)
            loaded = group.model
        last = Served(
            instance=instance,
            group=group,
            place=place,
            swap=swap,
            swap_s=swap_s,
            waits_for_tail=waits_for_tail,
            start=now,
            asleep=asleep,
            class_sd_s=0.0 if group.cls is None else class_sd_s[group.cls],
            speed_sd_s=speed_sd_s,
        )
        yield last
        now, tail = last.leaves(), last.time.tail
        speed_sd_s += last.time.speed_sd_s
        if group.cls is not None:
            class_sd_s[group.cls] += last.time.class_sd_s


def serve(index: ProblemIndex, plan: Plan) -> list[Served]:
    """Serve all queues of a plan, in order of the instances' ids.

    Unknown instances and groups, groups that do not run there, and repeated groups are left out; `violations`
    names them.
    """
    served: list[Served] = []
    seen: set[GroupId] = set()
    swaps = {name: Swaps(kind) for name, kind in index.problem.kinds.items()}
    for id, instance in index.instances.items():
        queue = []
        for name in plan.queues.get(id, ()):
            group = index.groups.get(name)
            if group is not None and name not in seen and index.runs(instance, group):
                seen.add(name)
                queue.append(group)
        served.extend(timeline(index.problem.kinds[instance.kind], instance, queue, swaps[instance.kind]))
    return served
