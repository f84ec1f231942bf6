"""Symmetry breaking: plans that differ only in names."""

import pyomo.environ as pyo
from pyomo.core.expr.numvalue import NumericValue

from qlm.planner.arrays import NONE
from support.position_form.assignment import occupied
from support.position_form.sets import Sets


def add_symmetry(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Order equal groups and identical instances."""
    _equal_groups(model, sets)
    _identical_instances(model, sets)


def _equal_groups(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Groups equal in everything stand in id order along queues and positions.

    Groups that differ in their deadlines only are left free: one that is late anyway may better go last.
    """
    before = sets.queues[0].before.tolist()
    length = max(len(sets.positions(g)) for g in range(len(sets.queues)))

    def spot(m: pyo.ConcreteModel, i: int) -> NumericValue:
        return pyo.quicksum((g * length + j) * m.here[h, g, j] for h, g, j in m.here if h == i)

    model.equal_groups = pyo.Constraint(
        [i for i in sets.groups if before[i] != NONE],
        rule=lambda m, i: spot(m, before[i]) + 1 <= spot(m, i),
    )


def _identical_instances(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Order identical instances: the first have at least as many groups."""

    def count(m: pyo.ConcreteModel, g: int) -> NumericValue:
        return pyo.quicksum(occupied(m, sets, g, j) for j in sets.positions(g))

    same = [g for g in range(1, len(sets.queues)) if sets.queues[g] is sets.queues[g - 1]]
    same = [g for g in same if len(sets.positions(g))]
    model.identical_instances = pyo.Constraint(same, rule=lambda m, g: count(m, g) <= count(m, g - 1))
