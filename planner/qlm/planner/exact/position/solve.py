"""Solving by positions: build the model, call the solver, read the queues back."""

import pyomo.environ as pyo

from qlm.planner.exact.answer import Found
from qlm.planner.exact.highs import solve_model
from qlm.planner.exact.incumbent import Queues, value_of
from qlm.planner.exact.lanes import Lanes
from qlm.planner.exact.limits import PROVEN_GAP
from qlm.planner.exact.position.build import position_model
from qlm.planner.exact.position.sets import Sets


def solve_by_positions(lanes: Lanes, start: Found, *, time_limit_s: float | None) -> Found:
    """Solve the sampled problem in its position form.

    Args:
        lanes: The sampled problem.
        start: A known plan, returned if none is better.
        time_limit_s: When to stop; None for never.
    """
    slack_s = PROVEN_GAP * max(1.0, abs(start.value_s))
    model = position_model(lanes, cutoff_s=start.value_s + slack_s)
    outcome = solve_model(model, time_limit_s=time_limit_s)
    bound_s = max(outcome.bound_s, start.bound_s)
    if outcome.found:
        queues = _queues(model, lanes)
        value_s = value_of(lanes, queues)
        if value_s < start.value_s:
            return Found(queues=queues, value_s=value_s, bound_s=bound_s)
    return Found(queues=start.queues, value_s=start.value_s, bound_s=bound_s)


def _queues(model: pyo.ConcreteModel, lanes: Lanes) -> Queues:
    sets = Sets(lanes)
    queues: Queues = [[] for _ in sets.queues]
    taken = [key for key in sets.places if model.place[key].value > 0.5]
    for i, _, g, _ in sorted(taken, key=lambda key: key[3]):
        queues[sets.instance[g]].append(i)
    return queues
