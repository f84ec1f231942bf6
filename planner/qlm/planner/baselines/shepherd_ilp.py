"""SHEPHERD's integer program of one window; `docs/planner-baselines.md` has the formulas.

An instance serves models one after the other, each in a slot of its own; slots hold fixed batches by
deadline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyomo.environ as pyo
from pyomo.contrib.solver.solvers.highs import Highs

from qlm.domain.ids import ModelId
from qlm.planner.baselines.schedule import Schedule
from qlm.planner.problem import PlannedGroup

SLOTS_MAX: Final = 3
"""Most models that an instance serves in one window."""

REQUESTS_GAP: Final = 0.5
"""Optimality gap in requests: counts are whole, so a smaller gap is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """Data of the program.

    Attributes:
        batches: Batches by deadline.
        able: (batch, instance) pairs that could be in time if nothing else were served.
        due_s: Deadline of each batch, seconds from now.
        slots: Slots per instance.
    """

    batches: Sequence[PlannedGroup]
    models: list[ModelId]
    schedules: Sequence[Schedule]
    able: list[tuple[int, int]]
    due_s: list[float]
    slots: int

    def takes_s(self, batch: int, i: int) -> float:
        """Return the time of a batch on an instance."""
        time = self.batches[batch].time[self.schedules[i].instance.kind]
        return time.service.mean + time.tail.mean

    @property
    def last_s(self) -> float:
        """The last deadline: all served batches end by then."""
        return max(self.due_s[batch] for batch, _ in self.able)


class Solution(NamedTuple):
    """Result of the solver.

    Attributes:
        served: The batches of each instance, in order; None if no solution was found within the limits.
        iterations: Iterations of its linear programs: what it took, the same on every machine.
    """

    served: list[list[PlannedGroup]] | None
    iterations: int


def serve_most(
    batches: Sequence[PlannedGroup],
    schedules: Sequence[Schedule],
    *,
    now_s: float,
    nodes_max: int,
    time_limit_s: float | None,
) -> Solution:
    """Select, place and order batches so that the most requests are served in time.

    Args:
        batches: Groups with deadlines, sorted by these.
        schedules: Present schedules of the instances that may serve them.
        now_s: The present on the clock of the deadlines.
        nodes_max: Most nodes of the search tree.
        time_limit_s: Limit of the solver; None for none.
    """
    window = _window(batches, schedules, now_s)
    if not window.able:
        return Solution([[] for _ in schedules], 0)
    model = _program(window)
    found, iterations = _solve(model, nodes_max, time_limit_s)
    if not found:
        return Solution(None, iterations)
    served: list[list[PlannedGroup]] = [[] for _ in schedules]
    for batch, i, slot in sorted(model.places, key=lambda place: (place[2], place[0])):
        if pyo.value(model.serve[batch, i, slot]) > 0.5:
            served[i].append(batches[batch])
    return Solution(served, iterations)


def _window(batches: Sequence[PlannedGroup], schedules: Sequence[Schedule], now_s: float) -> _Window:
    due_s = [float("inf") if batch.deadline_s is None else batch.deadline_s - now_s for batch in batches]
    able: list[tuple[int, int]] = []
    for g, batch in enumerate(batches):
        for i, schedule in enumerate(schedules):
            time = batch.time.get(schedule.instance.kind)
            if time is not None and batch.model in schedule.kind.models:
                begins_s = schedule.ready_s(batch.model, schedule.last)
                if begins_s + time.service.mean + time.tail.mean <= due_s[g]:
                    able.append((g, i))
    models = sorted({batches[g].model for g, _ in able})
    return _Window(
        batches=batches,
        models=models,
        schedules=schedules,
        able=able,
        due_s=due_s,
        slots=min(SLOTS_MAX, len(models)),
    )


def _program(window: _Window) -> pyo.ConcreteModel:
    model = pyo.ConcreteModel("shepherd")
    schedules, slots = range(len(window.schedules)), range(window.slots)
    model.slots = pyo.Set(initialize=[(i, k) for i in schedules for k in slots])
    model.places = pyo.Set(initialize=[(g, i, k) for g, i in window.able for k in slots])
    of_lane = {(i, window.batches[g].model) for g, i in window.able}
    model.choices = pyo.Set(initialize=[(i, k, m) for i, m in sorted(of_lane) for k in slots])
    model.serve = pyo.Var(model.places, domain=pyo.Binary)
    model.hold = pyo.Var(model.choices, domain=pyo.Binary)
    model.begin_s = pyo.Var(model.slots, bounds=(0.0, window.last_s))
    _serve_once(model, window)
    _hold_models(model, window)
    _begin_slots(model, window)
    _meet_deadlines(model, window)
    _most_requests(model, window)
    return model


def _serve_once(model: pyo.ConcreteModel, window: _Window) -> None:
    """A batch is served at most once, in a slot of its model."""
    places: dict[int, list[tuple[int, int, int]]] = {}
    for place in model.places:
        places.setdefault(place[0], []).append(place)
    model.once = pyo.Constraint(
        sorted(places), rule=lambda m, g: pyo.quicksum(m.serve[place] for place in places[g]) <= 1
    )
    model.holding = pyo.Constraint(
        model.places, rule=lambda m, g, i, k: m.serve[g, i, k] <= m.hold[i, k, window.batches[g].model]
    )


def _hold_models(model: pyo.ConcreteModel, window: _Window) -> None:
    """A slot has at most one model, a model at most one slot per instance; empty slots come last."""
    holding = {slot: [c for c in model.choices if c[:2] == slot] for slot in model.slots}
    slots: dict[tuple[int, ModelId], list[tuple[int, int, ModelId]]] = {}
    for choice in model.choices:
        slots.setdefault((choice[0], choice[2]), []).append(choice)
    schedules = sorted({i for i, _, _ in model.choices})

    def count(m: pyo.ConcreteModel, i: int, k: int) -> Any:
        return pyo.quicksum(m.hold[choice] for choice in holding[i, k])

    model.one_model = pyo.Constraint(schedules, rule=lambda m, i: count(m, i, 0) <= 1)
    model.one_slot = pyo.Constraint(
        sorted(slots), rule=lambda m, i, name: pyo.quicksum(m.hold[c] for c in slots[i, name]) <= 1
    )
    model.packed = pyo.Constraint(
        [(i, k) for i in schedules for k in range(1, window.slots)],
        rule=lambda m, i, k: count(m, i, k) <= count(m, i, k - 1),
    )


def _begin_slots(model: pyo.ConcreteModel, window: _Window) -> None:
    """A slot begins when its model is loaded: after the slot before it, an unload and a swap."""
    holding = {slot: [c for c in model.choices if c[:2] == slot] for slot in model.slots}

    def rule(m: pyo.ConcreteModel, i: int, k: int) -> Any:
        schedule = window.schedules[i]
        if k == 0:
            ready = (schedule.ready_s(c[2], schedule.last) * m.hold[c] for c in holding[i, 0])
            return m.begin_s[i, 0] >= pyo.quicksum(ready)
        costs, asleep = schedule.kind.models, schedule.last.asleep
        loading = (schedule.swaps.wake_s(asleep, c[2]) * m.hold[c] for c in holding[i, k])
        swaps = pyo.quicksum(loading)
        unloads = pyo.quicksum(costs[c[2]].unload_s * m.hold[c] for c in holding[i, k - 1])
        # Before an empty slot nothing is unloaded.
        spared_s = max((costs[c[2]].unload_s for c in holding[i, k - 1]), default=0.0)
        empty = 1 - pyo.quicksum(m.hold[c] for c in holding[i, k])
        return m.begin_s[i, k] >= _ends_s(m, window, i, k - 1) + unloads + swaps - spared_s * empty

    model.begin = pyo.Constraint(model.slots, rule=rule)


def _ends_s(model: pyo.ConcreteModel, window: _Window, instance: int, slot: int) -> Any:
    takes = (
        window.takes_s(g, i) * model.serve[g, i, k] for g, i, k in model.places if (i, k) == (instance, slot)
    )
    return model.begin_s[instance, slot] + pyo.quicksum(takes)


def _meet_deadlines(model: pyo.ConcreteModel, window: _Window) -> None:
    """Served batches end in time, in order of deadlines within their slot."""

    def rule(m: pyo.ConcreteModel, g: int, i: int, k: int) -> Any:
        before = (
            window.takes_s(h, i) * m.serve[h, i, k]
            for h in range(g + 1)
            if (h, i, k) in m.places and window.batches[h].model == window.batches[g].model
        )
        slack_s = window.last_s - window.due_s[g]
        ends_s = m.begin_s[i, k] + pyo.quicksum(before)
        return ends_s <= window.due_s[g] + slack_s * (1 - m.serve[g, i, k])

    model.deadline = pyo.Constraint(model.places, rule=rule)


def _most_requests(model: pyo.ConcreteModel, window: _Window) -> None:
    """Maximise requests in time; break ties, by less than one request, towards the plan that ends earlier."""
    requests = pyo.quicksum(window.batches[g].requests * model.serve[g, i, k] for g, i, k in model.places)
    schedules = range(len(window.schedules))
    ends_s = pyo.quicksum(_ends_s(model, window, i, window.slots - 1) for i in schedules)
    weight = REQUESTS_GAP / (len(schedules) * max(window.last_s, 1e-9))
    model.most = pyo.Objective(expr=requests - weight * ends_s, sense=pyo.maximize)


def _solve(model: pyo.ConcreteModel, nodes_max: int, time_limit_s: float | None) -> tuple[bool, int]:
    """Solve it; return whether a solution was found, and the iterations that this took."""
    solver = Highs()
    solver.config.time_limit = time_limit_s
    solver.config.rel_gap = 0.0
    solver.config.abs_gap = REQUESTS_GAP
    solver.config.threads = 1
    solver.config.solver_options["mip_max_nodes"] = nodes_max
    solver.config.solver_options["random_seed"] = 0
    solver.config.load_solutions = False
    solver.config.raise_exception_on_nonoptimal_result = False
    result = solver.solve(model)
    iterations = max(0, int(result.extra_info.simplex_iteration_count))
    if result.incumbent_objective is None:
        return False, iterations
    result.solution_loader.load_vars()
    return True, iterations
