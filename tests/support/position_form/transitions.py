"""Model swaps, warm or cold: equations 7 and 9, by pairs instead of big-M."""

import pyomo.environ as pyo

from support.position_form.sets import END, Sets


def add_transitions(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Add the constraints that tie `pair` and `first` to `place`."""
    slots = [(g, j) for g in range(len(sets.queues)) for j in sets.positions(g)]
    model.model_at = pyo.Expression(
        [(b, g, j) for g, j in slots for b in sets.models], rule=_model_at(sets), doc="equation 7"
    )
    _pairs_leave(model, sets)
    _pairs_arrive(model, sets, [(g, j) for g, j in slots if j > 0])
    _first_use(model, sets)


def _model_at(sets: Sets) -> object:
    """Equation 7: the model that position j of queue g needs, as 0 or 1 for each model."""

    def rule(m: pyo.ConcreteModel, b: int, g: int, j: int) -> object:
        lane = sets.queues[g]
        return pyo.quicksum(m.here[i, g, j] for i in sets.groups if lane.runs[i] and lane.model[i] == b)

    return rule


def _pairs_leave(model: pyo.ConcreteModel, sets: Sets) -> None:
    """Equation 9: the group at j-1 is followed by exactly one model, or by nothing."""

    def rule(m: pyo.ConcreteModel, t: int, r: int, g: int, j: int) -> object:
        followed = pyo.quicksum(m.pair[t, r, b, g, j] for b in (*sets.models, END))
        return followed == pyo.quicksum(m.place[i, r, g, j - 1] for i in sets.alike[t])

    keys = sorted({(t, r, g, j) for t, r, _, g, j in model.pair})
    model.pairs_leave = pyo.Constraint(keys, rule=rule)


def _pairs_arrive(model: pyo.ConcreteModel, sets: Sets, slots: list[tuple[int, int]]) -> None:
    """Equation 9: the model at j follows exactly one group."""

    def rule(m: pyo.ConcreteModel, b: int, g: int, j: int) -> object:
        lane = sets.queues[g]
        before = [(t, r) for t, same in sets.alike.items() if lane.runs[same[0]] for r in range(len(same))]
        return m.model_at[b, g, j] == pyo.quicksum(m.pair[t, r, b, g, j] for t, r in before if j > r)

    model.pairs_arrive = pyo.Constraint([(b, g, j) for g, j in slots for b in sets.models], rule=rule)


def _first_use(model: pyo.ConcreteModel, sets: Sets) -> None:
    """A model that is not in host memory is swapped in cold once, where a queue first uses it."""

    def used_before(m: pyo.ConcreteModel, b: int, g: int, j: int) -> object:
        return m.model_at[b, g, j] <= pyo.quicksum(m.first[b, g, p] for p in sets.positions(g) if p <= j)

    def once(m: pyo.ConcreteModel, b: int, g: int) -> object:
        return pyo.quicksum(m.first[b, g, j] for j in sets.positions(g)) <= 1

    queues = [(b, g) for b, g in sorted({(b, g) for b, g, _ in model.first})]
    keys = sorted(model.first)
    model.first_here = pyo.Constraint(keys, rule=lambda m, b, g, j: m.first[b, g, j] <= m.model_at[b, g, j])
    model.first_before = pyo.Constraint(keys, rule=used_before)
    model.first_once = pyo.Constraint(queues, rule=once)
