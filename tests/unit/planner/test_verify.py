"""The referee: its numbers against other ways to them, and every constraint by name."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.limits import ON_TIME_S
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Objective, Plan, PlannedGroup, Problem
from qlm.planner.verify.closed_form import CHUNK_REQUESTS, lateness
from qlm.planner.verify.monte_carlo import sample
from qlm.planner.verify.referee import gap, judged, verify
from qlm.rct_estimator.normal import Normal
from support.plans import one_lateness, random_plan, random_problem, slow_penalty

SEEDS = st.integers(0, 10_000)
I0, I1 = InstanceId("i0"), InstanceId("i1")


@given(SEEDS, st.integers(0, 4))
def test_the_closed_form_is_the_sum_over_requests(seed: int, instances: int) -> None:
    problem = random_problem(seed, groups=7, instances=instances, priorities=2)
    plan = random_plan(problem, seed)
    report = verify(problem, plan)
    penalty_s, met = slow_penalty(problem, plan)
    assert report.violations == ()
    assert report.penalty_s == pytest.approx(penalty_s, rel=1e-12, abs=1e-12)
    wanted = sum(group.requests for group in problem.groups if group.deadline_s is not None)
    assert report.expected_attainment == pytest.approx(met / wanted if wanted else 1.0, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("objective", ["requests", "paper"])
@pytest.mark.parametrize("seed", range(6))
def test_the_closed_form_is_the_mean_of_samples(seed: int, objective: Objective) -> None:
    problem = random_problem(seed, groups=8, instances=2)
    plan = random_plan(problem, seed)
    wanted = verify(problem, plan, objective=objective)
    drawn = sample(
        problem,
        plan,
        generator=np.random.default_rng(seed),
        samples=20_000,
        objective=objective,
    )
    assert drawn.penalty_se_s > 0 and drawn.attainment_se > 0
    assert drawn.penalty_s == pytest.approx(wanted.penalty_s, abs=4 * drawn.penalty_se_s)
    assert drawn.expected_attainment == pytest.approx(wanted.expected_attainment, abs=4 * drawn.attainment_se)


def test_samples_repeat_with_the_generator_whatever_the_order_of_the_input() -> None:
    problem = random_problem(3)
    plan = random_plan(problem, 3)
    mixed = replace(problem, groups=problem.groups[::-1], instances=problem.instances[::-1])
    first, second, third = (
        sample(each, plan, generator=np.random.default_rng(seed), samples=50)
        for each, seed in ((problem, 1), (mixed, 1), (problem, 2))
    )
    assert first == second != third


def test_too_many_samples_are_refused() -> None:
    problem = random_problem(1)
    plan = random_plan(problem, 1)
    wide = replace(problem.groups[0], requests=1_000_000)
    for samples, among, message in (
        (1, problem, "samples is 1; expected at least 2"),
        (10**7, problem, "samples is 10000000; expected at most 1000000"),
        (10**6, replace(problem, groups=(wide, *problem.groups[1:])), "samples times requests"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            sample(among, plan, generator=np.random.default_rng(1), samples=samples)


@given(st.floats(-1e9, 1e9), st.floats(0, 1e12))
def test_lateness_agrees_with_one_request_at_a_time(mean_s: float, var: float) -> None:
    late_s, late = lateness(np.array([mean_s]), np.array([var]))
    wanted_s, wanted = one_lateness(Normal(mean_s, var), 0.0)
    assert late[0] == pytest.approx(wanted, rel=1e-12, abs=1e-300)
    # What is cancelled is at most the standard deviation's own rounding.
    assert late_s[0] == pytest.approx(wanted_s, rel=1e-12, abs=1e-14 * math.sqrt(var))


@pytest.mark.parametrize("z", [-30.0, -8.0, -1.0, 0.0, 1e-9, 3.0, 8.2, 8.4, 40.0])
def test_lateness_is_exact_far_from_the_deadline(z: float) -> None:
    """Mills' ratio by its continued fraction gives the tail without cancellation."""
    late_s, late = lateness(np.array([z * 7.0]), np.array([49.0]))
    if z > -4:
        return
    ratio = 0.0
    for k in range(400, 0, -1):
        ratio = k / (-z + ratio)
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    p = density / (-z + ratio)
    assert late[0] == pytest.approx(p, rel=1e-12)
    assert late_s[0] == pytest.approx(7.0 * (density + z * p), rel=1e-9)


def test_certain_requests_are_late_only_behind_their_deadline() -> None:
    late_s, late = lateness(np.array([-1.0, 0.0, 0.9 * ON_TIME_S, 1.1 * ON_TIME_S, 2.0]), np.zeros(5))
    assert late.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
    assert late_s.tolist() == [0.0, 0.0, 0.0, 1.1 * ON_TIME_S, 2.0]


@given(SEEDS)
def test_the_order_of_the_input_changes_no_digit(seed: int) -> None:
    problem = random_problem(seed, groups=9, instances=3)
    plan = random_plan(problem, seed)
    rng = random.Random(seed)
    mixed = replace(
        problem,
        groups=tuple(rng.sample(problem.groups, len(problem.groups))),
        instances=tuple(rng.sample(problem.instances, len(problem.instances))),
        kinds=dict(reversed(problem.kinds.items())),
    )
    other = replace(plan, queues=dict(reversed(plan.queues.items())))
    assert verify(mixed, other) == verify(problem, plan)


@given(SEEDS, st.floats(0, 1000))
def test_later_deadlines_never_raise_the_penalty(seed: int, later_s: float) -> None:
    problem = random_problem(seed)
    plan = random_plan(problem, seed)
    relaxed = tuple(
        replace(group, deadline_s=None if group.deadline_s is None else group.deadline_s + later_s)
        for group in problem.groups
    )
    before, after = verify(problem, plan), verify(replace(problem, groups=relaxed), plan)
    assert after.penalty_s <= before.penalty_s * (1 + 1e-12) + 1e-9
    assert after.expected_attainment >= before.expected_attainment - 1e-12


@given(SEEDS)
def test_moving_costs_its_price_and_staying_nothing(seed: int) -> None:
    problem = random_problem(seed, groups=8, instances=3)
    plan = random_plan(problem, seed)
    report = verify(problem, plan)
    settled = replace(
        problem,
        instances=tuple(replace(each, queue=plan.queues[each.id]) for each in problem.instances),
    )
    still = verify(settled, plan)
    assert still.moved == () and still.move_s == 0.0
    assert report.move_s == 5.0 * len(report.moved)
    assert report.penalty_s == pytest.approx(still.penalty_s + report.move_s)


@given(SEEDS, st.floats(-1e6, 1e6))
def test_only_times_from_now_count(seed: int, shift_s: float) -> None:
    problem = random_problem(seed)
    plan = random_plan(problem, seed)
    shifted = replace(
        problem,
        now_s=problem.now_s + shift_s,
        groups=tuple(
            replace(group, deadline_s=None if group.deadline_s is None else group.deadline_s + shift_s)
            for group in problem.groups
        ),
    )
    assert verify(shifted, plan).penalty_s == pytest.approx(verify(problem, plan).penalty_s, rel=1e-6)


def test_large_groups_are_summed_in_parts() -> None:
    problem = random_problem(5, groups=3, instances=1, models=1)
    large = tuple(replace(group, requests=CHUNK_REQUESTS - 1) for group in problem.groups)
    problem = replace(problem, groups=large)
    plan = random_plan(problem, 5)
    wanted = verify(problem, plan)
    alone = [
        verify(
            replace(problem, groups=tuple(replace(g, deadline_s=None) if g is not one else g for g in large)),
            plan,
        )
        for one in large
    ]
    assert sum(each.penalty_s - each.move_s for each in alone) + wanted.move_s == pytest.approx(
        wanted.penalty_s
    )


A, B = ModelId("a"), ModelId("b")
COST = ModelCost(weights_bytes=1, swap_warm_s=2.0, swap_cold_s=40.0, unload_s=1.0)
TIME = {"k": GroupTime(service=Normal(10.0, 4.0), tail=Normal(3.0, 1.0))}


def group(name: str, model: ModelId = A, priority: int = 0, deadline_s: float | None = 100.0) -> PlannedGroup:
    return PlannedGroup(
        id=GroupId(name), model=model, requests=2, deadline_s=deadline_s, priority=priority, time=TIME
    )


def by_hand(*groups: PlannedGroup, loaded: ModelId | None = A, warm: tuple[ModelId, ...] = ()) -> Problem:
    return Problem(
        now_s=0.0,
        kinds={"k": Kind(host_memory_bytes=100, models={A: COST, B: COST})},
        instances=(Instance(id=I0, kind="k", loaded_model=loaded, warm_models=warm, busy=Normal(5.0, 2.0)),),
        groups=groups,
    )


def test_times_by_hand() -> None:
    problem = by_hand(group("x"), group("y", B), group("z"))
    rows = verify(problem, Plan(queues={I0: tuple(map(GroupId, "xyz"))})).rows
    assert [row.start for row in rows] == [Normal(5.0, 2.0), Normal(59.0, 7.0), Normal(75.0, 12.0)]
    assert [row.completion for row in rows] == [Normal(18.0, 7.0), Normal(72.0, 12.0), Normal(88.0, 17.0)]
    assert [(row.swap, row.swap_s) for row in rows] == [(None, 0.0), ("cold", 41.0), ("warm", 3.0)]
    assert [(row.place, row.requests, row.deadline_s) for row in rows] == [(at, 2, 100.0) for at in range(3)]


@pytest.mark.parametrize(
    ("loaded", "warm", "swap", "start_s"),
    [
        (None, (), "cold", 45.0),
        (None, (A,), "warm", 7.0),
        (B, (A,), "warm", 8.0),
        (B, (), "cold", 46.0),
        (ModelId("unknown here"), (), "cold", 45.0),
        (A, (), None, 5.0),
    ],
)
def test_the_first_model_change(
    loaded: ModelId | None, warm: tuple[ModelId, ...], swap: str | None, start_s: float
) -> None:
    report = verify(by_hand(group("x"), loaded=loaded, warm=warm), Plan(queues={I0: (GroupId("x"),)}))
    assert (report.rows[0].swap, report.rows[0].start.mean) == (swap, start_s)
    assert (report.swaps_warm, report.swaps_cold) == (swap == "warm", swap == "cold")
    assert report.swap_s == start_s - 5.0


def test_the_paper_counts_the_mean_lateness_of_last_requests() -> None:
    problem = by_hand(group("x", deadline_s=20.0), group("y", deadline_s=10.0), group("z", deadline_s=None))
    plan = Plan(queues={I0: tuple(map(GroupId, "xyz"))})
    report = verify(problem, plan, objective="paper")
    assert [row.penalty_s for row in report.rows] == [-2.0, 18.0, 0.0]
    assert report.penalty_s == 16.0
    assert report.expected_attainment == verify(problem, plan).expected_attainment


def test_the_chance_constraint_is_about_the_last_request() -> None:
    report = verify(by_hand(group("x", deadline_s=18.0)), Plan(queues={I0: (GroupId("x"),)}))
    (row,) = report.rows
    assert row.p_last_late == pytest.approx(0.5)
    first_late = 1 - Normal(13.0, 4.0).at_most(18.0)
    assert row.late_requests == pytest.approx(0.5 + first_late)
    assert row.p_met == pytest.approx(1 - (0.5 + first_late) / 2)


NOWHERE = group("n", ModelId("c"))


@pytest.mark.parametrize(
    ("plan", "constraint", "detail"),
    [
        (Plan(queues={I0: (GroupId("x"),), I1: ()}), "known_instances", "there is no instance i1"),
        (Plan(queues={I0: (GroupId("x"), GroupId("q"))}), "known_groups", "the queue of i0 has q"),
        (
            Plan(queues={I0: (GroupId("x"),)}, unplaceable=(GroupId("n"), GroupId("q"))),
            "known_groups",
            "the list of unplaceable groups has q",
        ),
        (Plan(queues={I0: ()}), "each_group_once", "x is placed nowhere"),
        (
            Plan(queues={I0: (GroupId("x"), GroupId("x"))}),
            "each_group_once",
            "x is placed 2 times: i0, i0",
        ),
        (
            Plan(queues={I0: (GroupId("x"), GroupId("n"))}),
            "runs_there",
            "n of c does not run on i0 (k)",
        ),
        (
            Plan(queues={I0: (GroupId("x"),)}, unplaceable=(GroupId("n"), GroupId("n"))),
            "unplaceable",
            "a group is listed twice",
        ),
        (
            Plan(queues={I0: ()}, unplaceable=(GroupId("x"), GroupId("n"))),
            "unplaceable",
            "x is listed, but could be placed",
        ),
        (
            Plan(queues={I0: (GroupId("x"),)}, unplaceable=()),
            "unplaceable",
            "n is not listed, but cannot be placed: c runs on no instance",
        ),
        (Plan(queues={I0: (GroupId("x"),)}, penalty_s=3.0), "claimed_penalty", "3.0 s claimed; expected "),
        (
            Plan(queues={I0: (GroupId("x"),)}, expected_attainment=0.75),
            "claimed_attainment",
            "0.75 claimed; expected 0.",
        ),
        (
            Plan(queues={I0: (GroupId("x"),)}, lower_bound_s=1e9),
            "lower_bound",
            "1000000000.0 s claimed; expected at most the penalty, ",
        ),
    ],
)
def test_each_violation_has_a_name_and_says_where(plan: Plan, constraint: str, detail: str) -> None:
    found = verify(by_hand(group("x"), NOWHERE), plan).violations
    assert any(each.constraint == constraint and each.detail.startswith(detail) for each in found), found


def test_strict_priorities() -> None:
    problem = by_hand(group("x", priority=1), group("y"), group("z", priority=-1))
    order = verify(problem, Plan(queues={I0: tuple(map(GroupId, "zyx"))}))
    assert order.violations == ()
    (found,) = verify(problem, Plan(queues={I0: tuple(map(GroupId, "zxy"))})).violations
    assert found.constraint == "priority_order"
    assert found.detail == "on i0, y (priority 0) stands behind x (priority 1)"


def test_a_group_that_runs_nowhere_counts_as_missed_and_costs_nothing() -> None:
    problem = by_hand(group("x", deadline_s=1e6), NOWHERE)
    plan = Plan(queues={I0: (GroupId("x"),)}, unplaceable=(GroupId("n"),))
    report = verify(problem, plan)
    assert (report.violations, report.penalty_s, report.expected_attainment) == ((), 0.0, 0.5)


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (PlannedGroup(id=GroupId("n"), model=A, requests=1, deadline_s=None), "the group has no time for k"),
        (replace(NOWHERE, model=ModelId("big")), "big runs on spare only, of which there is no instance"),
        (replace(NOWHERE, model=ModelId("?")), "? runs on no instance"),
    ],
)
def test_why_a_group_runs_nowhere(wanted: PlannedGroup, why: str) -> None:
    problem = by_hand(wanted)
    spare = Kind(host_memory_bytes=100, models={ModelId("big"): COST})
    times = {**wanted.time, "spare": TIME["k"]} if wanted.time else {}
    problem = replace(problem, kinds={**problem.kinds, "spare": spare}, groups=(replace(wanted, time=times),))
    (found,) = verify(problem, Plan(queues={})).violations
    assert why in found.detail
    (found,) = verify(replace(problem, instances=()), Plan(queues={})).violations
    assert "there is no instance" in found.detail


def test_nothing_to_do_is_done() -> None:
    report = verify(by_hand(), Plan(queues={}))
    assert (report.violations, report.penalty_s, report.expected_attainment) == ((), 0.0, 1.0)


@given(SEEDS)
def test_a_judged_plan_claims_what_is_true(seed: int) -> None:
    problem = random_problem(seed)
    plan = judged(problem, replace(random_plan(problem, seed), penalty_s=-1.0, expected_attainment=2.0))
    assert verify(problem, plan).violations == ()


def test_the_gap_is_what_could_be_saved() -> None:
    problem = by_hand(group("x"), group("y"), group("z", deadline_s=None))
    plan = Plan(queues={}, penalty_s=10.0, lower_bound_s=8.0)
    assert gap(problem, plan) == pytest.approx(2 / 8)
    assert gap(problem, replace(plan, penalty_s=7.9)) == 0.0
    assert gap(problem, replace(plan, penalty_s=None)) is None
    assert gap(problem, replace(plan, lower_bound_s=None)) is None
    assert gap(problem, replace(plan, penalty_s=0.5, lower_bound_s=0.1)) == pytest.approx(0.4 / 4)
    assert gap(by_hand(), replace(plan, penalty_s=1.0, lower_bound_s=0.0)) is None
    assert gap(by_hand(), replace(plan, penalty_s=0.0, lower_bound_s=0.0)) == 0.0
