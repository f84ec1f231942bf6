"""Scenarios: times sampled once, so that all plans are compared on the same futures.

The sample-average problem replaces the expectation of equation 13 by the mean over K scenarios. Only sums
of one instance's times matter, so instances may share draws. `busy` has one draw per scenario. Of groups
alike in time (same model, same times on each kind), the r-th served on an instance has the r-th draw, on
any instance. Alike groups are then exchangeable in each scenario, as they are in distribution, and draws
depend neither on deadlines nor on the fleet.

Errors that groups share have one draw per scenario: that of a class's mean length, and that of an instance's
speed.

Draws are stratified (Latin hypercube): each quantity takes K equally likely normal quantiles, scaled to
mean 0 and variance 1, in an order of its own. One scenario is therefore the problem in its mean values.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId
from qlm.planner.arrays import Floats
from qlm.planner.exact.limits import SCENARIOS_MAX
from qlm.planner.problem import PlannedGroup, Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenarios:
    """K equally likely scenarios, in standard deviations from the mean.

    Attributes:
        busy: Draws for the time until an instance's present batch has ended; (K,).
        service: Draws by group, for the service time of the group served in its rank; (K,) each.
        tail: Draws by group, for the tail; (K,) each.
        speed: Draws for the error of an instance's speed; (K,).
        classes: Draws by class, for the error of its mean length; (K,) each.
        alike: Groups alike in time with each group, sorted by id; the r-th of them served on an instance
            takes the draws of the r-th here.
    """

    busy: Floats
    service: dict[GroupId, Floats]
    tail: dict[GroupId, Floats]
    speed: Floats
    classes: dict[str, Floats]
    alike: dict[GroupId, tuple[GroupId, ...]]

    @property
    def count(self) -> int:
        """Number of scenarios, K."""
        return len(self.busy)


def draw_scenarios(problem: Problem, *, scenarios: int, seed: int) -> Scenarios:
    """Sample the times of a problem.

    Args:
        problem: If none of its times is uncertain, there is one scenario.
        scenarios: Number of scenarios, 1 to `SCENARIOS_MAX`.
        seed: The same seed gives the same scenarios, in any order of the input.

    Raises:
        InvalidValueError: `scenarios` is out of range.
    """
    if not 1 <= scenarios <= SCENARIOS_MAX:
        raise InvalidValueError("scenarios", scenarios, f"1 to {SCENARIOS_MAX}")
    groups = sorted(problem.groups, key=lambda g: g.id)
    count = scenarios if _uncertain(problem) else 1
    classes = sorted({group.cls for group in groups if group.cls is not None})
    rng = np.random.default_rng(seed)
    draws = _stratified(count, 1 + 2 * len(groups), rng)
    shared = _stratified(count, 1 + len(classes), rng)
    return Scenarios(
        busy=draws[0],
        service={group.id: draws[1 + 2 * at] for at, group in enumerate(groups)},
        tail={group.id: draws[2 + 2 * at] for at, group in enumerate(groups)},
        speed=shared[0],
        classes={name: shared[1 + at] for at, name in enumerate(classes)},
        alike=alike_in_time(groups),
    )


def _uncertain(problem: Problem) -> bool:
    times = (time for group in problem.groups for time in group.time.values())
    return any(i.busy.var > 0 for i in problem.instances) or any(
        t.whole_service.var + t.tail.var + t.tail_speed_sd_s > 0 for t in times
    )


def _stratified(count: int, quantities: int, rng: np.random.Generator) -> Floats:
    """Draws of shape (quantities, count)."""
    normal = NormalDist()
    levels = np.array([normal.inv_cdf((k + 0.5) / count) for k in range(count)])
    levels -= levels.mean()
    if count > 1:
        levels /= levels.std()
    return np.stack([rng.permutation(levels) for _ in range(quantities)])


def alike_in_time(groups: Iterable[PlannedGroup]) -> dict[GroupId, tuple[GroupId, ...]]:
    """Return for each group all groups with its model, class and times on each kind, sorted by id."""
    members: dict[object, list[GroupId]] = {}
    keys = {
        group.id: (group.model, group.cls, tuple(sorted(group.time.items(), key=_kind))) for group in groups
    }
    for id in sorted(keys):
        members.setdefault(keys[id], []).append(id)
    return {id: tuple(members[key]) for id, key in keys.items()}


def _kind(item: tuple[str, object]) -> str:
    return item[0]
