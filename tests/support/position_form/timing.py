"""Start of each position in each scenario: equation 10."""

import pyomo.environ as pyo
from pyomo.core.expr.numvalue import NumericValue

from qlm.planner.arrays import COLD, WARM
from qlm.planner.exact.lanes import Lane
from support.position_form.sets import END, Sets


def add_timing(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Add equation 10 in our form: a swap into j delays j too, and the group before it ends first."""

    def rule(m: pyo.ConcreteModel, g: int, j: int, k: int) -> object:
        lane = sets.queues[g]
        if j == 0:
            return m.start[g, 0, k] == float(lane.busy_s[k]) + _first_swap(m, sets, g) + _cold(m, sets, g, 0)
        served = _drain(m, sets, g, j - 1, k) + _swap(m, sets, g, j, k) + _cold(m, sets, g, j)
        return m.start[g, j, k] == m.start[g, j - 1, k] + served

    model.timing = pyo.Constraint(sorted(model.start), rule=rule)


def _first_swap(m: pyo.ConcreteModel, sets: Sets, g: int) -> NumericValue:
    """Equation 9 at j = 0 compares with the model loaded now."""
    lane = sets.queues[g]
    unload_s = lane.unload_s[lane.loaded] if lane.loaded >= 0 else 0.0
    others = [b for b in sets.models if b != lane.loaded]
    first_s = unload_s + lane.leave_s
    return pyo.quicksum(
        float(first_s + lane.memory.takes_s[0, b, WARM]) * m.model_at[b, g, 0] for b in others
    )


def _cold(m: pyo.ConcreteModel, sets: Sets, g: int, j: int) -> NumericValue:
    """Return the extra time of a cold swap."""
    lane = sets.queues[g]
    takes_s = lane.memory.takes_s[0]
    cold = [b for b in sets.models if lane.tier[b] == COLD]
    return pyo.quicksum(float(takes_s[b, COLD] - takes_s[b, WARM]) * m.first[b, g, j] for b in cold)


def _drain(m: pyo.ConcreteModel, sets: Sets, g: int, j: int, k: int) -> NumericValue:
    """W of equation 10: the sampled service of the group at j."""
    lane = sets.queues[g]
    return pyo.quicksum(
        float(lane.service_s[sets.kinship(i), r, k]) * m.place[i, r, g, j]
        for i in sets.groups
        if lane.runs[i]
        for r in sets.ranks(i)
        if r <= j
    )


def _swap(m: pyo.ConcreteModel, sets: Sets, g: int, j: int, k: int) -> NumericValue:
    """Before a model change the group at j-1 counts with its tail, then unload and a warm swap follow."""
    lane = sets.queues[g]
    return pyo.quicksum(
        _change_s(lane, t, r, b, same[0], k) * m.pair[t, r, b, g, j]
        for t, same in sets.alike.items()
        if lane.runs[same[0]]
        for r in range(len(same))
        if j > r
        for b in sets.models
        if b not in (END, lane.model[same[0]])
    )


def _change_s(lane: Lane, t: int, r: int, b: int, member: int, k: int) -> float:
    return float(lane.tail_s[t, r, k] + lane.unload_s[lane.model[member]] + lane.memory.takes_s[0, b, WARM])
