"""Variables of the position form."""

import math

import pyomo.environ as pyo

from qlm.planner.arrays import COLD
from support.position_form.sets import END, Sets


def add_variables(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Declare all variables.

    `place` decides; pairs, first uses and times follow from it, misses from the times.
    """
    model.place = pyo.Var(sets.places, domain=pyo.Binary, doc="x[i,r,g,j]: group, rank, queue, position")
    _transitions(model, sets)
    _times(model, sets)


def _transitions(model: pyo.ConcreteModel, sets: Sets) -> None:
    pairs = [
        (t, r, b, g, j)
        for g, lane in enumerate(sets.queues)
        for t, members in sets.alike.items()
        if lane.runs[members[0]]
        for r in range(len(members))
        for b in (*sets.models, END)
        for j in sets.positions(g)
        if j > r
    ]
    first = [
        (b, g, j)
        for g, lane in enumerate(sets.queues)
        for b in sets.models
        if lane.tier[b] == COLD
        for j in sets.positions(g)
    ]
    model.pair = pyo.Var(pairs, bounds=(0, 1), doc="a group of t in rank r at j-1, then model b at j")
    model.first = pyo.Var(first, bounds=(0, 1), doc="model b is first used, and not warm, at j")


def _times(model: pyo.ConcreteModel, sets: Sets) -> None:
    starts = [(g, j, k) for g in range(len(sets.queues)) for j in sets.positions(g) for k in sets.scenarios]
    model.start = pyo.Var(starts, doc="when position j of queue g starts in scenario k, s")
    due = [i for i in sets.groups if math.isfinite(sets.queues[0].deadline_s[i])]
    model.due = pyo.Set(initialize=due, doc="groups with a deadline")
    model.begin = pyo.Var(model.due, sets.scenarios, doc="when group i starts in scenario k, s")
    model.cost = pyo.Var(model.due, doc="mean penalty of group i, s")
    if sets.queues[0].paper:
        return
    requests = [
        (i, q, k) for i in due for q in range(1, int(sets.queues[0].requests[i]) + 1) for k in sets.scenarios
    ]
    model.late = pyo.Var(requests, domain=pyo.NonNegativeReals, doc="lateness of request q, s")
    model.miss = pyo.Var(requests, domain=pyo.Binary, doc="request q misses its deadline")
