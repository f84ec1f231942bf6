"""Assignment of groups to positions: equation 6, ranks, strict priorities."""

import pyomo.environ as pyo
from pyomo.core.expr.numvalue import NumericValue

from support.position_form.sets import Sets


def add_assignment(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Add all constraints on `place` alone."""
    model.here = pyo.Expression(
        sorted({(i, g, j) for i, _, g, j in sets.places}),
        rule=lambda m, i, g, j: pyo.quicksum(m.place[i, r, g, j] for r in sets.ranks(i) if r <= j),
    )
    _each_group_once(model, sets)
    _one_group_per_position(model, sets)
    _no_gaps(model, sets)
    _ranks(model, sets)
    _priorities(model, sets)


def occupied(model: pyo.ConcreteModel, sets: Sets, g: int, j: int) -> NumericValue:
    """Return 1 if position j of queue g has a group, else 0."""
    return pyo.quicksum(model.here[i, g, j] for i in sets.groups if sets.queues[g].runs[i])


def _slots(sets: Sets) -> list[tuple[int, int]]:
    return [(g, j) for g in range(len(sets.queues)) for j in sets.positions(g)]


def _each_group_once(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Equation 6, first half."""
    model.each_group_once = pyo.Constraint(
        sets.groups,
        rule=lambda m, i: pyo.quicksum(m.here[h, g, j] for h, g, j in m.here if h == i) == 1,
    )


def _one_group_per_position(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Equation 6, second half, with "at most" in place of empty groups."""
    model.one_group_per_position = pyo.Constraint(
        _slots(sets), rule=lambda m, g, j: occupied(m, sets, g, j) <= 1
    )


def _no_gaps(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Equation 6: a position is used only if the one before it is."""
    model.no_gaps = pyo.Constraint(
        [(g, j) for g, j in _slots(sets) if j > 0],
        rule=lambda m, g, j: occupied(m, sets, g, j) <= occupied(m, sets, g, j - 1),
    )


def _ranks(model: pyo.ConcreteModel, sets: Sets) -> None:
    """The r-th group of a set that a queue serves has rank r: each rank once, after the one before."""

    def served(m: pyo.ConcreteModel, t: int, r: int, g: int, positions: range) -> NumericValue:
        return pyo.quicksum(m.place[i, r, g, j] for i in sets.alike[t] for j in positions if j >= r)

    keys = [
        (t, r, g)
        for g, lane in enumerate(sets.queues)
        for t, members in sets.alike.items()
        if lane.runs[members[0]] and len(members) > 1
        for r in range(len(members))
    ]
    model.rank_once = pyo.Constraint(keys, rule=lambda m, t, r, g: served(m, t, r, g, sets.positions(g)) <= 1)
    model.rank_in_turn = pyo.Constraint(
        [(t, r, g, j) for t, r, g in keys if r > 0 for j in sets.positions(g) if j >= r],
        rule=lambda m, t, r, g, j: served(m, t, r, g, range(j, j + 1)) <= served(m, t, r - 1, g, range(j)),
    )


def _priorities(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Strict priorities (QLM, A.3): behind a group stands none of a lower priority number."""
    priority = sets.queues[0].priority

    def rule(m: pyo.ConcreteModel, g: int, j: int, level: int) -> object:
        able = [i for i in sets.groups if sets.queues[g].runs[i]]
        before = pyo.quicksum(m.here[i, g, j - 1] for i in able if priority[i] >= level)
        behind = pyo.quicksum(m.here[i, g, j] for i in able if priority[i] < level)
        return before + behind <= 1

    levels = sorted(set(priority.tolist()))[1:]
    keys = [(g, j, level) for g, j in _slots(sets) if j > 0 for level in levels]
    keys = [key for key in keys if _both_sides(sets, key[0], key[2])]
    model.priority_order = pyo.Constraint(keys, rule=rule)


def _both_sides(sets: Sets, g: int, level: int) -> bool:
    lane = sets.queues[g]
    able = lane.priority[lane.runs]
    return bool((able >= level).any() and (able < level).any())
