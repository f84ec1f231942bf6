"""Lateness of each request in each scenario: equations 8, 10 and 11 per request."""

import pyomo.environ as pyo
from pyomo.core.expr.numvalue import NumericValue

from qlm.planner.limits import ON_TIME_S
from support.position_form.sets import Sets


def add_lateness(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Add a group's start, the lateness of its requests, and its mean penalty."""
    _begin(model, sets)
    if sets.queues[0].paper:
        _mean_lateness(model, sets)
    else:
        _late(model, sets)
        _miss(model, sets)
        _penalty(model, sets)
    _at_least(model, sets)


def _begin(model: pyo.ConcreteModel, sets: Sets) -> None:
    """A group starts no earlier than its position; big-M as small as the position allows."""

    def rule(m: pyo.ConcreteModel, i: int, g: int, j: int, k: int) -> object:
        big_s = float(sets.latest(g, j)[k] - earliest[i][k])
        return m.begin[i, k] >= m.start[g, j, k] - big_s * (1 - m.here[i, g, j])

    earliest = {i: _earliest(sets, i) for i in model.due}
    keys = [(i, g, j, k) for i, g, j in model.here if i in model.due for k in sets.scenarios]
    model.begin_behind = pyo.Constraint(keys, rule=rule)

    def at_place(m: pyo.ConcreteModel, i: int, k: int) -> object:
        slots = [(g, j) for h, g, j in m.here if h == i]
        return m.begin[i, k] >= pyo.quicksum(
            float(sets.earliest(i, g, j)[k]) * m.here[i, g, j] for g, j in slots
        )

    model.begin_earliest = pyo.Constraint(model.due, sets.scenarios, rule=at_place)


def _earliest(sets: Sets, i: int) -> list[float]:
    able = [g for g, lane in enumerate(sets.queues) if lane.runs[i]]
    return [float(min(sets.earliest(i, g, 0)[k] for g in able)) for k in sets.scenarios]


def ends_late(m: pyo.ConcreteModel, sets: Sets, i: int, q: int, k: int) -> NumericValue:
    """Equation 11: completion of request q of group i less its deadline (equation 8), in scenario k."""
    lane = sets.queues[0]
    t, share = sets.kinship(i), q / float(lane.requests[i])
    own_s = pyo.quicksum(
        float(share * sets.queues[g].service_s[t, r, k] + sets.queues[g].tail_s[t, r, k])
        * m.place[h, r, g, j]
        for h, r, g, j in sets.places
        if h == i
    )
    return m.begin[i, k] + own_s - float(lane.deadline_s[i])


def _late(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Equation 11, its positive part."""
    model.lateness = pyo.Constraint(
        sorted(model.late), rule=lambda m, i, q, k: m.late[i, q, k] >= ends_late(m, sets, i, q, k)
    )


def _miss(model: pyo.ConcreteModel, sets: Sets) -> None:
    """A late request misses its deadline; what equation 12 counts, paid for instead of forbidden."""

    def rule(m: pyo.ConcreteModel, i: int, q: int, k: int) -> object:
        big_s = _latest_end(sets, i, k) - float(sets.queues[0].deadline_s[i])
        if big_s <= ON_TIME_S:
            return m.miss[i, q, k] == 0
        return ends_late(m, sets, i, q, k) <= ON_TIME_S + big_s * m.miss[i, q, k]

    model.missing = pyo.Constraint(sorted(model.miss), rule=rule)


def _latest_end(sets: Sets, i: int, k: int) -> float:
    """After which no request of group i ends in scenario k."""
    able = [g for g, lane in enumerate(sets.queues) if lane.runs[i]]
    t = sets.kinship(i)
    starts_s = [float(sets.latest(g, sets.positions(g)[-1])[k]) for g in able]
    served_s = [
        max(float(sets.queues[g].service_s[t, r, k]), 0.0) + float(sets.queues[g].tail_s[t, r, k])
        for g in able
        for r in sets.ranks(i)
    ]
    return max(starts_s) + max(served_s)


def _penalty(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Inner sum of equation 13: lateness and misses of a group's requests, mean over scenarios."""
    weight_s, scenarios = float(sets.queues[0].miss_weight_s), len(sets.scenarios)

    def rule(m: pyo.ConcreteModel, i: int) -> object:
        requests = [key for key in m.late if key[0] == i]
        total = pyo.quicksum(m.late[key] + weight_s * m.miss[key] for key in requests)
        return m.cost[i] >= total / scenarios

    model.penalty_of = pyo.Constraint(model.due, rule=rule)


def _mean_lateness(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Equations 5 and 11 in the paper's form: mean lateness of the last request."""
    last = {i: int(sets.queues[0].requests[i]) for i in model.due}
    model.penalty_of = pyo.Constraint(
        model.due,
        rule=lambda m, i: (
            m.cost[i]
            >= pyo.quicksum(ends_late(m, sets, i, last[i], k) for k in sets.scenarios) / len(sets.scenarios)
        ),
    )


def _at_least(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Cut: at position j a group costs at least what it would if all before it were the shortest."""

    def rule(m: pyo.ConcreteModel, i: int) -> object:
        slots = [(g, j) for h, g, j in m.here if h == i]
        price = {g: float(sets.queues[g].price_s[i]) for g, _ in slots}
        return m.cost[i] >= pyo.quicksum(
            (sets.least_s(i, g, j) - price[g]) * m.here[i, g, j] for g, j in slots
        )

    model.at_least = pyo.Constraint(model.due, rule=rule)
