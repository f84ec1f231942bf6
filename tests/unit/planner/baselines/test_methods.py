"""Each baseline on small cases, and the properties of all of them."""

import random
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.baselines.fcfs import plan_fcfs
from qlm.planner.baselines.group_greedy import plan_group_greedy
from qlm.planner.baselines.most_memory import MostMemory, plan_most_memory
from qlm.planner.baselines.priority_fcfs import plan_priority_fcfs
from qlm.planner.baselines.random_placement import plan_random
from qlm.planner.baselines.round_robin import RoundRobin, plan_round_robin
from qlm.planner.baselines.sjf import plan_sjf
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, PlannedGroup, Problem
from qlm.rct_estimator.normal import Normal
from support.planning import Method, check_plan, check_priorities, problems, shuffled

A, B, C = map(ModelId, "abc")
COST = ModelCost(weights_bytes=1, swap_warm_s=2.0, swap_cold_s=40.0, unload_s=1.0)

METHODS: dict[str, Method] = {
    "fcfs": plan_fcfs,
    "edf": plan_edf,
    "sjf": plan_sjf,
    "priority-fcfs": plan_priority_fcfs,
    "round-robin": plan_round_robin,
    "most-memory": plan_most_memory,
    "random": partial(plan_random, seed=3),
    "group-greedy": plan_group_greedy,
}


STRICT = {"edf", "priority-fcfs", "group-greedy"}
"""No group stands behind one of a higher priority number."""


def group(
    name: str,
    model: ModelId,
    deadline_s: float | None = None,
    *,
    service_s: float = 8.0,
    requests: int = 4,
    priority: int = 0,
    kinds: str = "kl",
) -> PlannedGroup:
    time = GroupTime(service=Normal(service_s), tail=Normal(1.0))
    return PlannedGroup(
        id=GroupId(name),
        model=model,
        requests=requests,
        deadline_s=deadline_s,
        priority=priority,
        time=dict.fromkeys(kinds, time),
    )


def problem(*groups: PlannedGroup, instances: int = 1) -> Problem:
    """`instances` of kind k, on which a and b run and a is loaded; l is a kind that the fleet lacks."""
    runs = {A: COST, B: COST}
    return Problem(
        now_s=0.0,
        kinds={
            "k": Kind(host_memory_bytes=100, models=runs),
            "l": Kind(host_memory_bytes=100, models={**runs, C: COST}),
        },
        instances=tuple(Instance(id=InstanceId(f"i{n}"), kind="k", loaded_model=A) for n in range(instances)),
        groups=groups,
    )


def queues(method: Method, of: Problem) -> list[str]:
    return [" ".join(queue) for _, queue in sorted(method(of).queues.items())]


@settings(max_examples=100)
@given(of=problems(), rng=st.randoms(use_true_random=False))
def test_every_group_stands_once_where_it_runs_whatever_the_input_order(
    of: Problem, rng: random.Random
) -> None:
    mixed = shuffled(of, rng)
    for name, method in METHODS.items():
        plan = method(of)
        check_plan(of, plan)
        assert plan.method == name
        assert method(mixed) == plan
        if name in STRICT:
            check_priorities(of, plan)


@pytest.mark.parametrize("name", METHODS)
def test_what_runs_nowhere_is_said_to_be_unplaceable(name: str) -> None:
    plan = METHODS[name](problem(group("z", C), group("x", A, kinds="l"), group("y", A)))
    assert (plan.unplaceable, plan.queues) == (("x", "z"), {"i0": ("y",)})
    assert METHODS[name](problem(group("y", A), instances=0)).unplaceable == ("y",)
    assert METHODS[name](problem()).queues == {"i0": ()}


def test_sjf_takes_first_what_takes_least_per_request() -> None:
    long = group("long", A, 1.0, service_s=8.0, requests=1)
    many = group("many", B, 2.0, service_s=20.0, requests=10)
    short = group("short", A, 3.0, service_s=1.0, requests=1)
    assert queues(plan_sjf, problem(long, many, short)) == ["short many long"]


def test_sjf_counts_the_best_kind_of_the_fleet_only() -> None:
    slow, quick = Normal(9.0), Normal(1.0)
    times = {"k": GroupTime(service=slow, tail=slow), "l": GroupTime(service=quick, tail=quick)}
    elsewhere = replace(group("elsewhere", A), requests=1, time=times)
    assert queues(plan_sjf, problem(elsewhere, group("here", A, requests=1))) == ["here elsewhere"]


def test_priority_fcfs_takes_priorities_first_and_regroups_nothing() -> None:
    mixed = (group("x", A, -9.0), group("y", B, -8.0), group("z", A, -7.0), group("p", B, -1.0, priority=-1))
    assert queues(plan_priority_fcfs, problem(*mixed)) == ["p x y z"]
    assert queues(plan_fcfs, problem(*mixed)) == ["x y z p"]


def test_round_robin_gives_each_model_to_its_instances_in_turn() -> None:
    mixed = (
        *(group(f"a{n}", A, float(n)) for n in range(4)),
        *(group(f"b{n}", B, float(n)) for n in range(2)),
    )
    assert queues(plan_round_robin, problem(*mixed, instances=3)) == ["a0 b0 a3", "a1 b1", "a2"]


def test_round_robin_goes_on_where_it_was_and_moves_nothing() -> None:
    method = RoundRobin()
    assert queues(method, problem(group("a", A), group("b", A), instances=3)) == ["a", "b", ""]
    assert queues(method, problem(group("b", A), group("c", A), instances=3)) == ["", "b", "c"]
    assert queues(method, problem(group("b", A), group("d", A), instances=3)) == ["d", "b", ""]
    without = problem(group("b", A), group("d", A), instances=1)
    assert queues(method, without) == ["b d"], "i1, where b was, is gone"


def sized(*requests: int, tokens: float = 100.0, instances: int = 2, kv_tokens: int = 1000) -> Problem:
    """Groups of that many requests; nine tenths of `kv_tokens` fit into an instance."""
    groups = (
        replace(group(f"g{n}", A, float(n), requests=each), request_tokens=tokens)
        for n, each in enumerate(requests)
    )
    found = problem(*groups, instances=instances)
    cost = replace(COST, kv_tokens=kv_tokens)
    return replace(found, kinds={"k": replace(found.kinds["k"], models={A: cost, B: cost})})


def test_most_memory_goes_where_the_most_is_left_and_fills_up_again() -> None:
    # Left: 900 and 900, 500 and 900, 500 and 700, 500 and 600, 500 and 0; then 900 and 900 again.
    assert queues(plan_most_memory, sized(4, 2, 1, 6, 7, 1)) == ["g0 g4", "g1 g2 g3 g5"]
    assert queues(plan_most_memory, sized(50, 50, 50)) == ["g0 g2", "g1"], "larger than any cache"
    assert queues(plan_most_memory, sized(1, 1, 1, tokens=0.0, kv_tokens=0)) == ["g0 g2", "g1"], "unknown"


def test_most_memory_prefers_the_larger_cache() -> None:
    of = sized(8, 8, 8)
    kinds = {"k": of.kinds["k"], "l": sized(1, kv_tokens=3000).kinds["k"]}
    large = replace(of.instances[1], kind="l")
    groups = tuple(replace(each, time=dict.fromkeys("kl", each.time["k"])) for each in of.groups)
    of = replace(of, kinds=kinds, instances=(of.instances[0], large), groups=groups)
    assert queues(plan_most_memory, of) == ["", "g0 g1 g2"]


@pytest.mark.parametrize(
    ("tokens", "large", "groups"), [(2000.0, 1100, 20), (1000.0, 3000, 10), (900.0, 3000, 10), (100.0, 0, 20)]
)
def test_instances_get_groups_by_their_caches_also_such_as_exceed_them(
    tokens: float, large: int, groups: int
) -> None:
    of = sized(*([1] * 40), tokens=tokens)
    kinds = {"k": of.kinds["k"], "l": sized(1, kv_tokens=large).kinds["k"]}
    placed = tuple(replace(each, time=dict.fromkeys("kl", each.time["k"])) for each in of.groups)
    instances = (of.instances[0], replace(of.instances[1], kind="l"))
    small, _ = queues(plan_most_memory, replace(of, kinds=kinds, instances=instances, groups=placed))
    assert len(small.split()) == pytest.approx(groups, abs=1)


def test_requests_that_join_a_group_take_their_part_of_the_cache() -> None:
    method, of = MostMemory(), sized(1, 1)
    assert queues(method, of) == ["g0", "g1"]
    grown = replace(of.groups[0], requests=5)
    assert queues(method, replace(of, groups=(grown, of.groups[1]))) == ["g0", "g1"]
    later = tuple(replace(of.groups[0], id=GroupId(f"n{n}"), deadline_s=9.0 + n) for n in range(3))
    assert queues(method, replace(of, groups=(grown, of.groups[1], *later))) == ["g0", "g1 n0 n1 n2"]


def test_most_memory_goes_on_where_it_was_and_moves_nothing() -> None:
    method, of = MostMemory(), sized(8, 1, 1)
    assert queues(method, of) == ["g0", "g1 g2"]
    assert queues(method, replace(of, groups=of.groups[::2])) == ["g0", "g2"]
    later = replace(of.groups[0], id=GroupId("new"), requests=6)
    assert queues(method, replace(of, groups=(*of.groups[::2], later))) == ["g0", "new g2"]


def test_random_placement_is_even_and_does_not_move_what_stays() -> None:
    crowd = [group(f"g{n}", A) for n in range(300)]
    before = plan_random(problem(*crowd, instances=3), seed=7)
    assert all(70 <= len(queue) <= 130 for queue in before.queues.values())
    after = plan_random(problem(*crowd[150:], instances=2), seed=7)
    for instance, queue in after.queues.items():
        stayed = [id for id in before.queues[instance] if int(id[1:]) >= 150]
        assert [id for id in queue if id in stayed] == stayed
    assert plan_random(problem(*crowd, instances=3), seed=8).queues != before.queues


def test_group_greedy_serves_all_of_a_model_before_it_takes_the_largest_next() -> None:
    mixed = (
        group("a0", A, 90.0, requests=1),
        group("b0", B, 1.0, requests=9),
        group("a1", A, 80.0, requests=1),
    )
    assert queues(plan_group_greedy, problem(*mixed)) == ["a1 a0 b0"]
    cold = replace(problem(*mixed), instances=(Instance(id=InstanceId("i0"), kind="k"),))
    assert queues(plan_group_greedy, cold) == ["b0 a1 a0"]


def test_group_greedy_lets_several_instances_share_a_backlog() -> None:
    mixed = (*(group(f"a{n}", A, float(n)) for n in range(5)), group("b", B))
    assert queues(plan_group_greedy, problem(*mixed, instances=2)) == ["a0 a2 a4", "a1 a3 b"]


def test_group_greedy_has_an_instance_that_cannot_run_the_largest_take_another() -> None:
    big, small = group("big", A, requests=50, kinds="k"), group("small", B, requests=1, kinds="l")
    both = problem(big, small)
    other = Instance(id=InstanceId("j"), kind="l")
    assert queues(plan_group_greedy, replace(both, instances=(*both.instances, other))) == ["big", "small"]
