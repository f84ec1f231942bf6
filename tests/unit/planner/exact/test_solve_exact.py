"""Properties of exact plans, and their limits."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.exact.answer import ExactAnswer
from qlm.planner.exact.limits import EXACT_GROUPS_MAX, EXACT_INSTANCES_MAX
from qlm.planner.exact.scenarios import draw_scenarios
from qlm.planner.exact.solve import solve_exact, solve_on
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Objective, PlannedGroup, Problem
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.normal import Normal
from support.exact_planning import Shape, random_problem
from support.position_form.solve import solve_positions

pytestmark = pytest.mark.timeout(400)  # the first call compiles
SAMPLES = st.sampled_from([None, 6])
few = settings(max_examples=40, deadline=None)


def draw_problem(seed: int, groups: int = 5) -> Problem:
    rng = random.Random(seed)
    shape = Shape(groups=groups, instances=rng.randint(1, 3), models=rng.randint(1, 3), load=1.3)
    return random_problem(shape, rng)


def solved(problem: Problem, scenarios: int | None, objective: Objective = "requests") -> ExactAnswer:
    drawn = None if scenarios is None else draw_scenarios(problem, scenarios=scenarios, seed=1)
    answer = solve_on(problem, drawn, time_limit_s=None, objective=objective)
    assert answer.proven
    return answer


@few
@given(seed=st.integers(0, 10**6), scenarios=SAMPLES)
def test_the_order_of_the_input_does_not_matter(seed: int, scenarios: int | None) -> None:
    problem, rng = draw_problem(seed), random.Random(seed)
    turned = replace(
        problem,
        groups=tuple(rng.sample(problem.groups, len(problem.groups))),
        instances=tuple(rng.sample(problem.instances, len(problem.instances))),
        kinds=dict(reversed(problem.kinds.items())),
    )
    one, other = solved(problem, scenarios).plan, solved(turned, scenarios).plan
    assert one == other


@few
@given(seed=st.integers(0, 10**6), scenarios=SAMPLES, later_s=st.floats(0.1, 100.0))
def test_a_later_deadline_never_raises_the_optimum(seed: int, scenarios: int | None, later_s: float) -> None:
    problem = draw_problem(seed)
    first, *rest = problem.groups
    if first.deadline_s is None:
        return
    relaxed = replace(problem, groups=(replace(first, deadline_s=first.deadline_s + later_s), *rest))
    before_s = solved(problem, scenarios).penalty_s
    assert solved(relaxed, scenarios).penalty_s <= before_s + 1e-5 * max(1.0, before_s)


@few
@given(seed=st.integers(0, 10**6), scenarios=SAMPLES)
def test_another_instance_never_raises_the_optimum(seed: int, scenarios: int | None) -> None:
    problem = draw_problem(seed)
    twin = replace(problem.instances[0], id=InstanceId("twin"), queue=())
    larger = replace(problem, instances=(*problem.instances, twin))
    before_s = solved(problem, scenarios).penalty_s
    assert solved(larger, scenarios).penalty_s <= before_s + 1e-5 * max(1.0, before_s)


@few
@given(seed=st.integers(0, 10**6), limit_s=st.sampled_from([0.0, 1e-4, 1e-3]), scenarios=SAMPLES)
def test_out_of_time_there_is_a_plan_and_a_bound(seed: int, limit_s: float, scenarios: int | None) -> None:
    problem = draw_problem(seed, groups=6)
    drawn = None if scenarios is None else draw_scenarios(problem, scenarios=scenarios, seed=1)
    hasty = solve_on(problem, drawn, time_limit_s=limit_s)
    best_s = solved(problem, scenarios).penalty_s
    assert not verify(problem, hasty.plan).violations
    assert hasty.lower_bound_s <= best_s + 1e-5 * max(1.0, best_s)
    assert hasty.penalty_s >= best_s - 1e-5 * max(1.0, best_s)
    assert hasty.plan.method == ("exact" if hasty.proven else "exact, not proven")


def test_a_plan_without_time_is_not_called_proven() -> None:
    hasty = [solve_exact(draw_problem(seed, groups=7), time_limit_s=0.0) for seed in range(10)]
    assert "exact, not proven" in {plan.method for plan in hasty}


def test_the_position_form_out_of_time_has_a_bound_too() -> None:
    problem = draw_problem(5, groups=5)
    drawn = draw_scenarios(problem, scenarios=5, seed=0)
    hasty = solve_positions(problem, drawn, time_limit_s=0.0)
    assert not verify(problem, hasty.plan).violations
    assert hasty.lower_bound_s <= solve_on(problem, drawn, time_limit_s=None).penalty_s + 1e-6


COST = ModelCost(weights_bytes=1, swap_warm_s=2.0, swap_cold_s=10.0, unload_s=1.0)
A = ModelId("a")


def equal_groups(count: int, instances: int, deadlines_s: tuple[float, ...] = (60.0,)) -> Problem:
    time = {"gpu": GroupTime(service=Normal(10.0, 4.0), tail=Normal(3.0, 1.0))}
    groups = tuple(
        PlannedGroup(
            id=GroupId(f"g{g:02}"),
            model=A,
            requests=4,
            deadline_s=deadlines_s[g % len(deadlines_s)],
            time=time,
        )
        for g in range(count)
    )
    fleet = tuple(Instance(id=InstanceId(f"i{i:03}"), kind="gpu", loaded_model=A) for i in range(instances))
    kinds = {"gpu": Kind(host_memory_bytes=100, models={A: COST})}
    return Problem(now_s=0.0, kinds=kinds, instances=fleet, groups=groups)


@pytest.mark.parametrize("scenarios", [None, 10])
def test_equal_groups_are_shared_out_in_id_order(scenarios: int | None) -> None:
    answer = solved(equal_groups(6, 3), scenarios)
    assert [len(queue) for queue in answer.plan.queues.values()] == [2, 2, 2]
    assert all(list(queue) == sorted(queue) for queue in answer.plan.queues.values())


def test_a_group_that_is_late_anyway_is_sacrificed_whatever_its_deadline() -> None:
    # One instance, 10 s each: whoever is first meets 14 s, nobody meets 5 s, the last of four ends at 43.
    problem = equal_groups(4, 1, deadlines_s=(5.0, 14.5, 24.5, 34.5))
    certain = GroupTime(service=Normal(10.0), tail=Normal(3.0))
    problem = replace(problem, groups=tuple(replace(g, time={"gpu": certain}) for g in problem.groups))
    answer = solved(problem, None)
    assert answer.plan.queues[InstanceId("i000")] == ("g01", "g02", "g03", "g00")


def test_strict_priorities_come_before_penalties() -> None:
    problem = equal_groups(2, 1, deadlines_s=(60.0, 13.5))
    first, second = problem.groups
    problem = replace(problem, groups=(first, replace(second, priority=1)))
    assert solved(problem, None).plan.queues[InstanceId("i000")] == ("g00", "g01")


def test_chances_name_the_groups_that_break_the_chance_constraint() -> None:
    problem = equal_groups(3, 1, deadlines_s=(60.0, 60.0, 23.0))
    answer = solved(problem, 200)
    assert answer.chances[GroupId("g02")] == 1.0
    assert answer.unlikely(0.9) == ()
    tight = solved(equal_groups(2, 1, deadlines_s=(13.0, 60.0)), 200)
    assert 0.3 < tight.chances[GroupId("g00")] < 0.7
    assert tight.unlikely(0.9) == ("g00",)


def test_the_papers_objective_is_the_mean_lateness_of_last_requests() -> None:
    answer = solved(equal_groups(2, 1), None, objective="paper")
    assert answer.penalty_s == pytest.approx((13 - 60) + (23 - 60))


def test_nothing_to_place_costs_nothing() -> None:
    empty = Problem(now_s=0.0, kinds={}, instances=(), groups=equal_groups(3, 1).groups)
    plan = solve_exact(empty)
    assert (plan.queues, plan.unplaceable, plan.method) == ({}, ("g00", "g01", "g02"), "exact")
    assert plan.lower_bound_s == 0.0
    assert solve_exact(replace(equal_groups(1, 2), groups=())).queues == {"i000": (), "i001": ()}


def test_a_sampled_plan_claims_no_bound_of_the_expectation() -> None:
    problem = equal_groups(3, 1)
    assert solve_exact(problem, scenarios=5).lower_bound_s is None
    certain = solve_exact(problem)
    assert certain.lower_bound_s == pytest.approx(verify(problem, certain).penalty_s, abs=1e-6)


@pytest.mark.parametrize("requests", [2, 700, 200_000])
def test_large_groups_cost_what_the_referee_says(requests: int) -> None:
    problem = equal_groups(3, 1, deadlines_s=(12.0, 21.0, 40.0))
    problem = replace(problem, groups=tuple(replace(g, requests=requests) for g in problem.groups))
    answer = solved(problem, None)
    assert answer.lower_bound_s == pytest.approx(verify(problem, answer.plan).penalty_s, rel=1e-4)
    assert answer.lower_bound_s <= answer.penalty_s


@pytest.mark.parametrize("var", [0.0, 1.0])
@pytest.mark.parametrize("scenarios", [None, 6])
def test_a_deadline_of_many_years_is_met_however_soon_one_request_follows_the_other(
    var: float, scenarios: int | None
) -> None:
    group = PlannedGroup(
        id=GroupId("g"),
        model=ModelId("a"),
        requests=1_000_000,
        deadline_s=1e11,
        time={"any": GroupTime(service=Normal(1e-3), tail=Normal(3.0, var))},
    )
    kind = Kind(
        host_memory_bytes=10,
        models={group.model: ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=5.0)},
    )
    at_home = Instance(id=InstanceId("home"), kind="any", busy=Normal(100.0), queue=(group.id,))
    idle = Instance(id=InstanceId("idle"), kind="any")
    problem = Problem(now_s=0.0, kinds={"any": kind}, instances=(at_home, idle), groups=(group,), move_s=5.0)
    answer = solved(problem, scenarios)
    assert answer.plan.queues == {"home": ("g",), "idle": ()}
    assert answer.penalty_s == answer.lower_bound_s == 0.0


@pytest.mark.parametrize("scale", [1e-3, 1e3, 1e6])
def test_the_unit_of_time_does_not_matter(scale: float) -> None:
    problem = equal_groups(5, 2, deadlines_s=(12.0, 21.0, 25.0))
    assert solved(_slower(problem, scale), None).penalty_s == pytest.approx(
        scale * solved(problem, None).penalty_s, rel=1e-5
    )


def _slower(problem: Problem, scale: float) -> Problem:
    """The same problem with all times `scale` times as long."""

    def slow(time: Normal) -> Normal:
        return time.scaled(scale)

    return replace(
        problem,
        miss_weight_s=problem.miss_weight_s * scale,
        groups=tuple(
            replace(
                g,
                deadline_s=None if g.deadline_s is None else g.deadline_s * scale,
                time={k: GroupTime(service=slow(t.service), tail=slow(t.tail)) for k, t in g.time.items()},
            )
            for g in problem.groups
        ),
    )


def test_more_instances_than_groups_are_fine() -> None:
    assert solved(equal_groups(3, EXACT_INSTANCES_MAX), None).proven


@pytest.mark.parametrize(("limit", "value"), [("PATTERNS_MAX", 2), ("LABELS_BYTES_MAX", 1000)])
def test_at_each_limit_on_patterns_the_plan_is_feasible_and_not_called_proven(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"qlm.planner.exact.patterns.{limit}", value)
    problem = equal_groups(6, 2, deadlines_s=(12.0, 21.0, 25.0, 33.0))
    answer = solve_on(problem, None)
    assert not answer.proven
    assert not verify(problem, answer.plan).violations


def test_what_is_too_large_is_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match=f"at most {EXACT_GROUPS_MAX} for method exact"):
        solve_exact(equal_groups(EXACT_GROUPS_MAX + 1, 2))
    with pytest.raises(InvalidValueError, match=f"instances is {EXACT_INSTANCES_MAX + 1}"):
        solve_exact(equal_groups(1, EXACT_INSTANCES_MAX + 1))
    with pytest.raises(InvalidValueError, match="time_limit_s is -1"):
        solve_exact(equal_groups(1, 1), time_limit_s=-1.0)
