"""The master problem of the pattern form, as a Pyomo model: set partitioning.

A pattern is a set of groups on a lane in its best order (`labelling`). The program chooses patterns so that
each group is served once (equation 6) and no more patterns than instances are used:

    min  sum_{l,p} cost_{l,p} use_{l,p}
    s.t. serve[e]:  sum_{l,p} count_{e,p} use_{l,p} = |e|    for each set e of equal groups
         fleet[l]:  sum_p use_{l,p} <= instances_l           for each lane l

The cost of a pattern contains equations 7 to 12, and the sum of 13 over one queue.
"""

from dataclasses import dataclass

import numpy as np
import pyomo.environ as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from qlm.planner.arrays import Floats, Ints
from qlm.planner.exact.highs import solve_model
from qlm.planner.exact.lanes import Lanes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patterns:
    """The patterns (columns) of all lanes; P in all.

    Attributes:
        lane: (P,).
        groups: Sets of groups as bits; (P,).
        cost_s: (P,).
        label: Label of the best order; (P,).
        unit_s: Seconds per unit of cost in the solver, whose tolerances suit numbers about 1.
    """

    lane: Ints
    groups: Ints
    cost_s: Floats
    label: Ints
    unit_s: float

    def only(self, kept: Ints) -> "Patterns":
        """Select patterns by index."""
        return Patterns(
            lane=self.lane[kept],
            groups=self.groups[kept],
            cost_s=self.cost_s[kept],
            label=self.label[kept],
            unit_s=self.unit_s,
        )


def master_model(lanes: Lanes, patterns: Patterns, *, relaxed: bool = False) -> pyo.ConcreteModel:
    """Build the program over patterns; `relaxed` allows fractions of patterns."""
    model = pyo.ConcreteModel("patterns")
    model.patterns = pyo.RangeSet(0, len(patterns.cost_s) - 1)
    model.use = pyo.Var(model.patterns, domain=pyo.NonNegativeReals if relaxed else pyo.NonNegativeIntegers)
    use = [model.use[p] for p in model.patterns]
    _serve(model, use, lanes, patterns)
    _fleet(model, use, lanes, patterns)
    model.penalty = pyo.Objective(expr=_sum(patterns.cost_s / patterns.unit_s, use, np.arange(len(use))))
    return model


def _serve(model: pyo.ConcreteModel, use: list[pyo.Var], lanes: Lanes, patterns: Patterns) -> None:
    """Add equation 6: each group is served once; equal ones are counted."""
    sets, count = lanes.equal, served(lanes, patterns)

    def rule(_: pyo.ConcreteModel, e: int) -> object:
        return _sum(count[e], use, np.flatnonzero(count[e])) == len(sets[e])

    model.serve = pyo.Constraint(range(len(sets)), rule=rule)


def _fleet(model: pyo.ConcreteModel, use: list[pyo.Var], lanes: Lanes, patterns: Patterns) -> None:
    """Add that each instance has one queue; identical instances are counted."""

    def rule(_: pyo.ConcreteModel, at: int) -> object:
        on_lane = np.flatnonzero(patterns.lane == at)
        return _sum(np.ones(len(use)), use, on_lane) <= len(lanes.instances[at])

    model.fleet = pyo.Constraint(sorted(set(patterns.lane.tolist())), rule=rule)


def served(lanes: Lanes, patterns: Patterns) -> Floats:
    """Return the groups of each set of equal ones in each pattern; (sets, P)."""
    counts = [sum((patterns.groups >> g) & 1 for g in same) for same in lanes.equal]
    return np.array(counts, dtype=np.float64)


def _sum(weights: Floats, use: list[pyo.Var], chosen: Ints) -> LinearExpression:
    return LinearExpression(
        linear_coefs=weights[chosen].tolist(), linear_vars=[use[p] for p in chosen.tolist()]
    )


def fix_by_reduced_cost(
    lanes: Lanes, patterns: Patterns, cutoff_s: float, time_limit_s: float | None
) -> tuple[Patterns, float]:
    """Drop columns that no plan up to the cutoff can use: reduced-cost fixing by the linear relaxation.

    With duals u of groups and v <= 0 of lanes, a plan costs at least the sum of all duals and of the
    reduced costs of its patterns. Any duals are valid.

    Returns:
        The patterns left, and the time the solver took.
    """
    model = master_model(lanes, patterns, relaxed=True)
    outcome = solve_model(model, time_limit_s=time_limit_s, duals_of=("serve", "fleet"))
    if not outcome.optimal:
        return patterns, outcome.took_s
    count, sizes = served(lanes, patterns), np.array([len(same) for same in lanes.equal], dtype=np.float64)
    fleet = np.array([len(same) for same in lanes.instances], dtype=np.float64)
    u = patterns.unit_s * np.array([outcome.duals["serve", e] for e in range(len(sizes))])
    v = patterns.unit_s * np.array(
        [min(outcome.duals.get(("fleet", at), 0.0), 0.0) for at in range(len(fleet))]
    )
    reduced_s = patterns.cost_s - u @ count - v[patterns.lane]
    least_s = u @ sizes + v @ fleet + min(float(reduced_s.min()), 0.0) * fleet.sum()
    return patterns.only(np.flatnonzero(least_s + reduced_s <= cutoff_s)), outcome.took_s
