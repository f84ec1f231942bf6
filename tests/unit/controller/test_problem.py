"""Estimates in the planning problem: drains that add up to what the queues take, and who is busy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.controller.core.estimating.planning_times import WAITED_SHARE_MIN, FormInBatch
from qlm.controller.core.estimating.queues import estimates
from qlm.controller.core.estimating.snapshot import Snapshot, take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.controller.core.problem import accelerator_of, arriving_forms, kinds_to_add, make_problem
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.formats.extensions import ClassExtensions
from qlm.domain.ids import ModelId
from qlm.domain.view import ClusterView
from qlm.planner.baselines.fcfs import plan_fcfs
from qlm.planner.problem import PROMISE_S, Problem
from qlm.planner.published_plan import PLAN, PublishedPlan
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.recompute import recompute_token_s
from support.batch_slots import STEP_S, draw
from support.estimating import (
    CHAT,
    KIND,
    LENGTHS,
    NOW_NS,
    STREAM,
    M,
    N,
    class_view,
    cluster,
    first_snapshot,
    groups_of,
    instance,
    steady_fleet,
    steady_profile,
)
from support.plans import random_problem

PLACES = 16
MEAN_S = float(draw(np.random.default_rng(6), 100_000).mean()) * STEP_S


def problem(*counts: int, status: InstanceStatus) -> tuple[Problem, Snapshot, ClusterView]:
    groups = groups_of(CHAT, *counts)
    view = cluster(class_view(CHAT, LENGTHS, *groups), instances=(status,), queues={"gpu-0": groups})
    fleet = steady_fleet(PLACES)
    now = first_snapshot(view, fleet)
    return make_problem(view, now, move_s=1.0), now, view


def drains(written: Problem) -> list[float]:
    (kind,) = written.kinds
    return [group.time[kind].service.mean for group in written.groups]


def test_groups_share_the_errors_of_their_class_and_of_the_speed() -> None:
    """The wait of the last is as uncertain in the plan as in the estimator."""
    written, now, _ = problem(100, 100, 100, 100, status=instance(running=PLACES))
    (kind,) = written.kinds
    (last,) = verify(written, plan_fcfs(written)).rows[-1:]
    estimated = estimates(now).of(last.group)
    assert estimated is not None
    assert {group.cls for group in written.groups} == {CHAT.queue}
    time = written.groups[-1].time[kind]
    assert time.class_sd_s > 0
    assert time.speed_sd_s > 0
    assert last.completion.var**0.5 == pytest.approx(estimated.completion.var**0.5, rel=0.1)


def test_groups_have_the_expected_tokens_of_their_requests() -> None:
    written, now, _ = problem(100, 100, status=instance())
    prompt_tokens = now.state.times.entries[(CHAT, KIND)].on_kind.state.workload.prompt_tokens
    (tokens,) = {group.request_tokens for group in written.groups}
    assert tokens - prompt_tokens == pytest.approx(MEAN_S / STEP_S, rel=0.1)


def test_a_class_passes_its_promise_to_its_groups_unless_they_are_late() -> None:
    promised = {}
    for cls in (CHAT, CHAT.missed()):
        (group,) = groups_of(cls, 20)
        known = replace(class_view(cls, LENGTHS, group), extensions=ClassExtensions(p_met=0.9))
        view = cluster(known, instances=(instance(),), queues={"gpu-0": (group,)})
        now = first_snapshot(view, steady_fleet(PLACES))
        written = make_problem(view, now, move_s=0.0, promise_s=PROMISE_S["hard"])
        assert written.promise_s == PROMISE_S["hard"]
        promised[cls.late] = [each.p_met for each in written.groups]
    assert promised == {False: [0.9], True: [None]}


@given(st.lists(st.integers(1, 200), min_size=1, max_size=5))
@settings(deadline=None, max_examples=25)
def test_drains_behind_a_full_batch_add_up_to_the_wait_of_the_last(counts: list[int]) -> None:
    written, now, _ = problem(*counts, status=instance(running=PLACES))
    last = estimates(now).of(written.groups[-1].id)
    assert last is not None
    assert sum(drains(written)) == pytest.approx(last.last_s, rel=0.01)


def test_free_places_shorten_the_drains_as_they_shorten_the_wait() -> None:
    written, now, _ = problem(100, 100, status=instance(running=0))
    last = estimates(now).of(written.groups[-1].id)
    assert last is not None
    assert sum(drains(written)) == pytest.approx(last.last_s, rel=0.02)


def test_a_few_requests_for_many_places_still_count() -> None:
    """Else all groups would seem to fit on one instance."""
    written, _, _ = problem(3, status=instance(running=0))
    assert drains(written)[0] == pytest.approx(WAITED_SHARE_MIN * 3 * MEAN_S / PLACES, rel=0.05)


def test_a_full_instance_is_busy_until_a_place_is_free_whatever_is_parked() -> None:
    per_request_s = MEAN_S / PLACES
    for status, requests in (
        (instance(running=0), 0.0),
        (instance(running=PLACES - 1), 0.0),
        (instance(running=PLACES), 1.0),
        (instance(running=PLACES, parked=4), 1.0),
        (instance(running=PLACES - 2, parked=4), 1.0),
    ):
        written, _, _ = problem(5, status=status)
        assert written.instances[0].busy.mean == pytest.approx(requests * per_request_s, rel=0.05)


@pytest.mark.parametrize(
    ("head_s", "newest_s", "due_s"),
    [
        (-4.0, -4.0, -4.0),  # one request, or all at once
        (-4.0, 0.0, -2.0),  # the middle one of those that came since
        (-300.0, -200.0, -10.0),  # far too late: as if half a target had passed
    ],
)
def test_a_group_is_due_with_its_middle_request_and_never_given_up(
    head_s: float, newest_s: float, due_s: float
) -> None:
    assert CHAT.target_ms == 20_000
    (group,) = groups_of(CHAT, 5)
    group = replace(group, head_arrival_ns=NOW_NS + round(head_s * 1e9))
    view = class_view(CHAT, LENGTHS, group)
    view = replace(view, newest_arrival_ns=NOW_NS + round(newest_s * 1e9))
    seen = cluster(view, instances=(instance(),), queues={"gpu-0": (group,)})
    fleet = steady_fleet(PLACES)
    written = make_problem(seen, first_snapshot(seen, fleet), move_s=0.0)
    (planned,) = written.groups
    assert planned.deadline_s is not None
    assert planned.deadline_s - written.now_s == pytest.approx(due_s + 20.0, abs=1e-5)


def test_a_reader_is_not_given_up_for_prompts_that_agents_keep_out_of_the_engine() -> None:
    """In a full batch, prompts before its own would take longer than its objective; agents allow 0.25 s."""
    profile = replace(steady_profile(PLACES), batched_tokens_max=64)
    fleet = replace(steady_fleet(PLACES), profiles={(M, KIND): profile})
    (group,) = groups_of(STREAM, 1)
    came_ns = NOW_NS - 200_000_000
    group = replace(group, head_arrival_ns=came_ns)
    view = class_view(STREAM, LENGTHS, group)
    view = replace(view, mean_prompt_tokens=1000.0, newest_arrival_ns=came_ns)
    seen = cluster(view, instances=(instance(),), queues={"gpu-0": (group,)})
    now = first_snapshot(seen, fleet)
    assert now.state.times.entries[STREAM, KIND].first_token.mean > 2.0
    problem = make_problem(seen, now, move_s=0.0, demotes=True)
    (planned,) = problem.groups
    assert planned.deadline_s is not None
    assert all(time.tail.mean < 1.0 for time in planned.time.values()), "nor planned for them"
    (alone,) = arriving_forms(now, problem, [STREAM])[STREAM].values()
    full = FormInBatch(alone.form, batch=PLACES)
    assert full.time.tail.mean < 1.0 < full.first_token.mean


def test_batches_beyond_the_full_one_are_of_one_kind() -> None:
    groups = groups_of(CHAT, 3)
    full = tuple(
        replace(instance(name, running=running), parked=parked)
        for name, running, parked in (("gpu-0", PLACES, 0), ("gpu-1", PLACES, 5), ("gpu-2", PLACES - 4, 0))
    )
    view = cluster(class_view(CHAT, LENGTHS, *groups), instances=full, queues={"gpu-0": groups})
    fleet = steady_fleet(PLACES)
    written = make_problem(view, first_snapshot(view, fleet), move_s=1.0)
    whole, beyond, free = (each.kind for each in written.instances)
    assert whole == beyond != free


def test_a_model_on_its_way_is_loaded_for_the_planner_once_it_is_there() -> None:
    starting = replace(instance(), active_model=None, engines=((M, EngineState.STARTING),))
    written, _, _ = problem(5, status=starting)
    assert written.instances[0].loaded_model == M
    assert written.instances[0].busy.mean == pytest.approx(30.0)


def test_the_tail_is_what_the_objective_is_about() -> None:
    groups = (*groups_of(CHAT, 5), *groups_of(STREAM, 5))
    view = cluster(
        class_view(CHAT, LENGTHS, groups[0]),
        class_view(STREAM, LENGTHS, groups[1]),
        instances=(instance(running=PLACES),),
        queues={"gpu-0": groups},
    )
    fleet = steady_fleet(PLACES)
    now = first_snapshot(view, fleet)
    answer, first = (next(iter(g.time.values())).tail for g in make_problem(view, now, move_s=0.0).groups)
    assert answer.mean == pytest.approx(MEAN_S, rel=0.05)
    assert first.mean == pytest.approx(STEP_S, rel=0.01)


def test_an_empty_group_is_not_planned() -> None:
    written, _, _ = problem(0, 5, status=instance())
    assert [group.requests for group in written.groups] == [5]


@pytest.mark.parametrize(("swap_hysteresis", "came", "times"), [(True, 60, 3), (True, 0, 1), (False, 60, 1)])
def test_a_cold_start_counts_with_the_wait_before_it_where_the_model_is_in_use(
    swap_hysteresis: bool, came: int, times: int
) -> None:
    """Agents whose model serves requests with deadlines wait twice as long as it takes."""
    (group,) = groups_of(CHAT, 5)
    fleet, state = steady_fleet(PLACES), NOTHING_LEARNED
    for minute in (0, 1):
        now_ns = NOW_NS + minute * 60 * 10**9
        view = replace(class_view(CHAT, LENGTHS, group), finished=1000 + minute * came)
        seen = cluster(view, instances=(instance(),), queues={"gpu-0": (group,)})
        state = learn(state, seen, now_ns=now_ns, fleet=fleet)
    now = take_snapshot(seen, now_ns=now_ns, fleet=fleet, state=state)
    (kind,) = make_problem(seen, now, move_s=0.0, swap_hysteresis=swap_hysteresis).kinds.values()
    (known,) = fleet.kinds.values()
    assert kind.models[M].swap_cold_s == times * known.models[M].swap_cold_s


def test_the_less_loaded_of_two_twins_has_the_shorter_tail() -> None:
    """Else both would look alike, and all groups would go to the first."""
    groups = groups_of(CHAT, 2)
    twins = (instance("gpu-0", running=9), instance("gpu-1", running=3))
    view = cluster(class_view(CHAT, LENGTHS, *groups), instances=twins, queues={})
    fleet = steady_fleet(PLACES)
    written = make_problem(view, first_snapshot(view, fleet), move_s=1.0)
    (group,) = written.groups
    busy, quiet = (group.time[each.kind].tail.mean for each in written.instances)
    assert written.instances[0].kind != written.instances[1].kind
    assert quiet < busy
    even = replace(view, instances=(replace(twins[0], running=3), twins[1]))
    alike = make_problem(even, first_snapshot(even, fleet), move_s=1.0)
    assert len(alike.kinds) == 1


def test_what_sleeps_has_its_tier_and_leaving_the_batch_its_price() -> None:
    status = replace(
        instance(running=3),
        models=(M, N),
        engines=((M, EngineState.AWAKE), (N, EngineState.UNLOADED)),
        kv_used_tokens=4_000,
    )
    written, now, _ = problem(5, status=status)
    (planned,) = written.instances
    assert (planned.warm_models, planned.unloaded_models) == ((N,), (N,))
    profile = now.fleet.profiles[(M, status.accelerator)]
    assert planned.leave_s == pytest.approx(4_000 * recompute_token_s(profile))
    idle, _, _ = problem(5, status=instance(running=0))
    assert idle.instances[0].leave_s == 0.0


def test_an_instance_is_added_of_the_kind_with_the_least_running() -> None:
    """Equal instances are of several kinds while they run different batches."""
    groups = groups_of(CHAT, 100)
    statuses = [instance(f"gpu-{n}", running=n) for n in (PLACES, 2, 9)]
    small = replace(instance("gpu-x", running=1), models=(M,))
    for fleet, named in (
        (statuses, {2: KIND}),
        ([*statuses, small], {1: f"{KIND} with {M}", 2: f"{KIND} with {M}, {N}"}),
    ):
        view = cluster(class_view(CHAT, LENGTHS, *groups), instances=tuple(fleet), queues={"gpu-0": groups})
        now = first_snapshot(view, steady_fleet(PLACES))
        written = make_problem(view, now, move_s=0.0)
        assert len(written.kinds) == len(fleet)
        added = kinds_to_add(written)
        assert {int(kind.split()[1]): name for kind, name in added.items()} == named
        assert kinds_to_add(replace(written, groups=())) == {}


def test_kinds_of_a_file_are_added_under_their_names() -> None:
    written = random_problem(1, groups=9)
    assert kinds_to_add(written) == {"fast": "fast", "slow": "slow"}


def test_a_plan_of_instances_with_a_hundred_models_can_be_read() -> None:
    """The names of kinds, which listed them, were longer than names may be."""
    models = tuple(ModelId(f"organisation/a-model-with-a-rather-long-name-{at:03}") for at in range(100))
    instances = tuple(
        replace(instance(f"gpu-{at}"), models=served)
        for at, served in enumerate(((M, *models), (M, *models[1:])))
    )
    groups = groups_of(CHAT, 5)
    view = cluster(class_view(CHAT, LENGTHS, *groups), instances=instances, queues={"gpu-0": groups})
    fleet = steady_fleet(PLACES)
    now = first_snapshot(view, fleet)
    written = make_problem(view, now, move_s=1.0)
    assert len(written.kinds) == 2 and {accelerator_of(kind) for kind in written.kinds} == {KIND}
    published = PublishedPlan(at_ms=round(1000 * written.now_s), problem=written, plan=plan_fcfs(written))
    assert PLAN.decode(PLAN.encode(published)).problem == written
