"""Forecasts of a decision, noted so that later ones learn from how they come out."""

from dataclasses import replace

from qlm.agents.core.scheduling.visits.backlog import Patience
from qlm.controller.core.estimating.snapshot import Snapshot
from qlm.controller.core.estimating.state import EstimatorState
from qlm.controller.core.expected.log import Wait, due_groups, is_time, note
from qlm.controller.core.expected.waits import expected_waits
from qlm.domain.view import ClusterView
from qlm.planner.problem import Plan, Problem


def with_forecasts(
    state: EstimatorState,
    view: ClusterView,
    snapshot: Snapshot,
    problem: Problem,
    plan: Plan,
    patience: Patience | None,
) -> EstimatorState:
    """Return the state with the forecasts of a plan, if it is time to note some.

    Args:
        state: The state so far.
        view: The cluster.
        snapshot: Origin of the problem.
        problem: The planning problem.
        plan: A plan of it.
        patience: That of agents that serve in visits; None if they follow their queue.
    """
    now_ns, log = snapshot.now_ns, state.forecasts
    if not is_time(log, now_ns):
        return state
    groups = [group for group, _ in snapshot.groups]
    due = due_groups(log, groups, now_ns)
    waits = {
        id: Wait(turn=each.turn, leaves_s=each.leaves.mean, ends_s=each.ends.mean)
        for id, each in (expected_waits(snapshot, problem, plan, patience, due) if due else {}).items()
    }
    return replace(state, forecasts=note(log, view, groups, waits, now_ns))
