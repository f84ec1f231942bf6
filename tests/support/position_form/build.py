"""The position form as one Pyomo model."""

import pyomo.environ as pyo

from qlm.planner.exact.lanes import Lanes
from support.position_form.assignment import add_assignment
from support.position_form.lateness import add_lateness
from support.position_form.sets import Sets
from support.position_form.symmetry import add_symmetry
from support.position_form.timing import add_timing
from support.position_form.transitions import add_transitions
from support.position_form.variables import add_variables


def position_model(lanes: Lanes, *, cutoff_s: float) -> pyo.ConcreteModel:
    """Build equations 6-13 for a sampled problem.

    Args:
        lanes: The sampled problem.
        cutoff_s: Value of a known plan; dearer ones are cut off.
    """
    sets = Sets(lanes)
    model = pyo.ConcreteModel("positions")
    add_variables(model, sets)
    add_assignment(model, sets)
    add_transitions(model, sets)
    add_timing(model, sets)
    add_lateness(model, sets)
    add_symmetry(model, sets)
    _add_objective(model, sets, cutoff_s)
    return model


def _add_objective(model: pyo.ConcreteModel, sets: Sets, cutoff_s: float) -> None:
    """Equation 13, and the price of moved groups."""
    moves = pyo.quicksum(float(sets.queues[g].price_s[i]) * model.here[i, g, j] for i, g, j in model.here)
    model.total = pyo.Expression(expr=pyo.quicksum(model.cost[i] for i in model.due) + moves)
    model.penalty = pyo.Objective(expr=model.total)
    if len(model.due):
        model.cutoff = pyo.Constraint(expr=model.total <= cutoff_s)
