import pytest

from benchmarks.planner_live import INTERACTIVE_S, _least_s
from benchmarks.planner_problems import changed, live, medium, small
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem import Problem
from qlm.planner.verify.referee import verify


def work_due_s(problem: Problem, until_s: float) -> float:
    due = [g for g in problem.groups if g.deadline_s is not None and g.deadline_s <= problem.now_s + until_s]
    return _least_s(due, problem.instances)


def test_the_live_problem_is_as_large_and_as_loaded_as_it_says() -> None:
    problem = live(3)
    assert len(problem.groups) == 1600
    assert sum(group.requests for group in problem.groups) == 400_000
    assert [i.kind for i in problem.instances].count("A10") == len(problem.instances) // 2 == 50
    assert len({group.model for group in problem.groups}) == 12
    last_s = max(g.deadline_s for g in problem.groups if g.deadline_s is not None) - problem.now_s
    for until_s in (INTERACTIVE_S[1], last_s):
        assert work_due_s(problem, until_s) / until_s == pytest.approx(1.2, rel=0.02)


def test_problems_are_the_same_for_the_same_seed_only() -> None:
    assert small(1, 5, 2, 2, True) == small(1, 5, 2, 2, True) != small(2, 5, 2, 2, True)
    assert medium(1, 40) == medium(1, 40) != medium(2, 40)
    assert live(1, 60, 4, 3) == live(1, 60, 4, 3) != live(2, 60, 4, 3)


def test_a_changed_problem_continues_its_plan() -> None:
    problem = live(1, 200, 10, 4)
    plan = plan_edf(problem)
    after = changed(problem, plan, 7, 0.05, elapsed_s=4.0)
    assert after == changed(problem, plan, 7, 0.05, elapsed_s=4.0)
    old, new = {g.id for g in problem.groups}, {g.id for g in after.groups}
    queued = {id for instance in after.instances for id in instance.queue}
    assert after.now_s == problem.now_s + 4.0
    assert len(new - old) == pytest.approx(0.05 * len(new), abs=1)
    assert queued == new & old
    assert sum(g.requests for g in after.groups) < sum(g.requests for g in problem.groups)
    assert not verify(after, plan_edf(after)).violations
