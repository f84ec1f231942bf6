"""The published form of planning problems."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.planner import limits
from qlm.planner.problem_json import problem_from_plain, problem_to_plain
from qlm.planner.verify.referee import verify
from support.plans import random_plan, random_problem

EXAMPLE: dict[str, Any] = {
    "version": 1,
    "now_s": 10.0,
    "miss_weight_s": 600.0,
    "move_s": 0.0,
    "kinds": {
        "A10": {
            "host_memory_bytes": 64,
            "models": {"m": {"weights_bytes": 14, "swap_warm_s": 1.0, "swap_cold_s": 30.0, "unload_s": 0.5}},
        }
    },
    "instances": [
        {
            "id": "a10-0",
            "kind": "A10",
            "loaded_model": None,
            "warm_models": ["m"],
            "busy_s": {"mean": 1.0, "var": 0.25},
            "queue": ["g"],
        }
    ],
    "groups": [
        {
            "id": "g",
            "model": "m",
            "requests": 3,
            "deadline_s": None,
            "priority": 0,
            "time": {"A10": {"drain_s": {"mean": 2.0, "var": 0.5}, "tail_s": {"mean": 1.0, "var": 0.0}}},
        }
    ],
}

MISSING = object()
GROUP, INSTANCE = ("groups", 0), ("instances", 0)
COST = ("kinds", "A10", "models", "m")
SERVICE = ("groups", 0, "time", "A10", "drain_s")


def example(*changes: tuple[tuple[Any, ...], object]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(EXAMPLE))
    for path, value in changes:
        spot: Any = plain
        for step in path[:-1]:
            spot = spot[step]
        if value is MISSING:
            del spot[path[-1]]
        else:
            spot[path[-1]] = value
    return plain


def test_a_problem_survives_the_way_through_json() -> None:
    problem = problem_from_plain(json.loads(json.dumps(EXAMPLE)))
    assert problem_to_plain(problem) == EXAMPLE
    assert problem_from_plain(problem_to_plain(problem)) == problem


@given(st.integers(0, 10_000))
def test_any_problem_survives_the_way_through_json(seed: int) -> None:
    problem = random_problem(seed, priorities=3)
    assert problem_from_plain(json.loads(json.dumps(problem_to_plain(problem)))) == problem


def test_what_may_be_left_out() -> None:
    problem = problem_from_plain(
        example(
            (("miss_weight_s",), MISSING),
            (("move_s",), MISSING),
            ((*COST, "unload_s"), MISSING),
            ((*INSTANCE, "loaded_model"), MISSING),
            ((*INSTANCE, "warm_models"), MISSING),
            ((*INSTANCE, "busy_s"), MISSING),
            ((*INSTANCE, "queue"), MISSING),
            ((*GROUP, "deadline_s"), MISSING),
            ((*GROUP, "priority"), MISSING),
            ((*SERVICE, "var"), MISSING),
        )
    )
    assert (problem.miss_weight_s, problem.move_s) == (600.0, 0.0)
    assert problem_to_plain(problem)["instances"] == [
        {
            "id": "a10-0",
            "kind": "A10",
            "loaded_model": None,
            "warm_models": [],
            "busy_s": {"mean": 0.0, "var": 0.0},
            "queue": [],
        }
    ]
    (group,) = problem.groups
    assert (group.deadline_s, group.priority, group.time["A10"].service.var) == (None, 0, 0.0)
    assert (group.cls, group.p_met, problem.promise_s) == (None, None, 0.0)
    assert (group.time["A10"].class_sd_s, group.time["A10"].speed_sd_s) == (0.0, 0.0)


def test_shared_errors_classes_and_promises_are_read() -> None:
    tail = ("groups", 0, "time", "A10", "tail_s")
    problem = problem_from_plain(
        example(
            (("promise_s",), 6000.0),
            ((*GROUP, "class"), "chat"),
            ((*GROUP, "p_met"), 0.9),
            ((*GROUP, "request_tokens"), 500.0),
            ((*SERVICE, "class_sd"), 0.3),
            ((*SERVICE, "speed_sd"), 0.2),
            ((*tail, "speed_sd"), 0.1),
        )
    )
    (group,) = problem.groups
    time = group.time["A10"]
    assert (problem.promise_s, group.cls, group.p_met) == (6000.0, "chat", 0.9)
    assert group.request_tokens == 500.0
    assert (time.class_sd_s, time.speed_sd_s, time.tail_speed_sd_s) == (0.3, 0.2, 0.1)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 2, "problem.version is 2; expected 1"),
        (("version",), True, "problem.version is True; expected 1"),
        (("version",), MISSING, "problem.version is None; expected a value; the field is missing"),
        (("surprise",), 1, "problem is 'surprise'; expected no field of this name"),
        ((*GROUP, "p_met"), 1.5, "groups[0].p_met is 1.5; expected at most 1"),
        ((*GROUP, "class"), "", "groups[0].class is ''; expected a non-empty string"),
        ((*SERVICE, "class_sd"), -1, "groups[0].time.A10.drain_s.class_sd is -1; expected at least 0"),
        (("now_s",), math.nan, "problem.now_s is nan; expected a finite number"),
        (("now_s",), -math.inf, "problem.now_s is -inf; expected a finite number"),
        (("now_s",), "now", "problem.now_s is 'now'; expected a number"),
        (("now_s",), None, "problem.now_s is None; expected a number"),
        (("now_s",), 1e12, "problem.now_s is 1000000000000.0; expected at most 100000000000"),
        (("miss_weight_s",), -1, "problem.miss_weight_s is -1; expected at least 0"),
        (("move_s",), 1e300, "problem.move_s is 1e+300; expected at most 1000000000"),
        (("kinds",), [], "problem.kinds is []; expected an object"),
        (("kinds", ""), {}, "a key of problem.kinds is ''; expected a non-empty string"),
        (("kinds", 7), {}, "a key of problem.kinds is 7; expected a non-empty string"),
        (("kinds", "A10"), 3, "kinds.A10 is 3; expected an object"),
        (("kinds", "A10", "host_memory_bytes"), 0.5, "expected a whole number"),
        (("kinds", "A10", "host_memory_bytes"), -1, "kinds.A10.host_memory_bytes is -1; expected at least 0"),
        (("kinds", "A10", "models"), MISSING, "kinds.A10.models is None; expected a value"),
        ((*COST, "swap_warm_s"), True, "kinds.A10.models.m.swap_warm_s is True; expected a number"),
        ((*COST, "swap_cold_s"), -0.1, "kinds.A10.models.m.swap_cold_s is -0.1; expected at least 0"),
        ((*COST, "weights_bytes"), 10**400, f"expected at most {2**53}"),
        ((*COST, "surprise"), 1, "kinds.A10.models.m is 'surprise'; expected no field of this name"),
        (("instances",), {}, "problem.instances is {}; expected a list"),
        (("instances",), [None], "instances[0] is None; expected an object"),
        ((*INSTANCE, "id"), ["a"], "instances[0].id is ['a']; expected a non-empty string"),
        ((*INSTANCE, "id"), "", "instances[0].id is ''; expected a non-empty string"),
        ((*INSTANCE, "id"), "a\nb", "instances[0].id is 'a\\nb'; expected printable characters only"),
        ((*INSTANCE, "id"), "\ud800", "expected printable characters only"),
        ((*INSTANCE, "id"), "x" * 5000, "expected at most 4096 characters"),
        ((*INSTANCE, "kind"), "H100", "instances[a10-0].kind is 'H100'; expected a key of kinds"),
        ((*INSTANCE, "kind"), {}, "instances[0].kind is {}; expected a non-empty string"),
        ((*INSTANCE, "loaded_model"), 3, "instances[0].loaded_model is 3; expected a non-empty string"),
        ((*INSTANCE, "warm_models"), "m", "instances[0].warm_models is 'm'; expected a list"),
        ((*INSTANCE, "warm_models"), ["m", []], "instances[0].warm_models[1] is []; expected a non-empty"),
        (
            (*INSTANCE, "warm_models"),
            ["m", "m"],
            "warm_models[1] is 'm'; expected each name once",
        ),
        ((*INSTANCE, "queue"), ["g", "g"], "instances[0].queue[1] is 'g'; expected each name once"),
        ((*INSTANCE, "queue"), [{}], "instances[0].queue[0] is {}; expected a non-empty string"),
        ((*INSTANCE, "busy_s"), 3.0, "instances[0].busy_s is 3.0; expected an object"),
        (
            (*INSTANCE, "busy_s"),
            {},
            "instances[0].busy_s.mean is None; expected a value; the field",
        ),
        ((*INSTANCE, "busy_s", "var"), math.nan, "instances[0].busy_s.var is nan; expected a finite number"),
        ((*GROUP, "id"), None, "groups[0].id is None; expected a non-empty string"),
        ((*GROUP, "model"), 7, "groups[0].model is 7; expected a non-empty string"),
        ((*GROUP, "requests"), -1, "groups[0].requests is -1; expected at least 1"),
        ((*GROUP, "requests"), 0, "groups[0].requests is 0; expected at least 1"),
        ((*GROUP, "requests"), 2.5, "groups[0].requests is 2.5; expected a whole number"),
        ((*GROUP, "requests"), "three", "groups[0].requests is 'three'; expected a number"),
        ((*GROUP, "requests"), True, "groups[0].requests is True; expected a number"),
        ((*GROUP, "requests"), math.inf, "groups[0].requests is inf; expected a"),
        ((*GROUP, "requests"), 10**6 + 1, "groups[0].requests is 1000001; expected at most 1000000"),
        ((*GROUP, "requests"), 10**300, "expected at most 1000000"),
        ((*GROUP, "deadline_s"), 1e300, "groups[0].deadline_s is 1e+300; expected at most 100000000000"),
        ((*GROUP, "deadline_s"), -1e300, "groups[0].deadline_s is -1e+300; expected at least -100000000000"),
        ((*GROUP, "deadline_s"), "soon", "groups[0].deadline_s is 'soon'; expected a number"),
        ((*GROUP, "deadline_s"), False, "groups[0].deadline_s is False; expected a number"),
        ((*GROUP, "priority"), 0.5, "groups[0].priority is 0.5; expected a whole number"),
        ((*GROUP, "priority"), 2**60, f"groups[0].priority is {2**60}; expected at most"),
        ((*GROUP, "time"), [], "groups[0].time is []; expected an object"),
        ((*GROUP, "time", "H100"), {}, "groups[0].time is 'H100'; expected keys of kinds only"),
        ((*GROUP, "time", "A10"), None, "groups[0].time.A10 is None; expected an object"),
        ((*GROUP, "time", "A10", "tail_s"), MISSING, "groups[0].time.A10.tail_s is None; expected a value"),
        ((*SERVICE, "mean"), -1.0, "groups[0].time.A10.drain_s.mean is -1.0; expected at least 0"),
        ((*SERVICE, "mean"), 1e308, "groups[0].time.A10.drain_s.mean is 1e+308; expected at most 1000000000"),
        ((*SERVICE, "var"), 1e300, "groups[0].time.A10.drain_s.var is 1e+300; expected at most 1e+18"),
        ((*SERVICE, "sd"), 1.0, "groups[0].time.A10.drain_s is 'sd'; expected no field of this name"),
        ((*GROUP, "surprise"), 1, "groups[0] is 'surprise'; expected no field of this name"),
    ],
)
def test_a_wrong_field_is_refused_by_name(path: tuple[Any, ...], value: object, message: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        problem_from_plain(example((path, value)))
    assert message in str(caught.value)


@pytest.mark.parametrize("plain", [None, [], "problem", 3, True])
def test_what_is_no_object_is_no_problem(plain: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"problem is .*; expected an object"):
        problem_from_plain(plain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p["groups"].extend(p["groups"]), "groups is 'g'; expected each id once"),
        (lambda p: p["instances"].extend(p["instances"]), "instances is 'a10-0'; expected each id once"),
        (
            lambda p: p["instances"].append(p["instances"][0] | {"id": "a10-1"}),
            "instances.queue is 'g'; expected each group in one queue, once",
        ),
    ],
)
def test_duplicates_are_refused(change: Callable[[dict[str, Any]], None], message: str) -> None:
    plain = example()
    change(plain)
    with pytest.raises(InvalidValueError, match=message):
        problem_from_plain(plain)


@pytest.mark.parametrize(
    ("path", "most", "item"),
    [
        (("groups",), limits.GROUPS_MAX, 0),
        (("instances",), limits.INSTANCES_MAX, 0),
        ((*INSTANCE, "queue"), limits.GROUPS_MAX, 0),
        ((*INSTANCE, "warm_models"), limits.MODELS_MAX, 0),
    ],
)
def test_too_many_are_refused_before_any_is_looked_at(path: tuple[Any, ...], most: int, item: object) -> None:
    with pytest.raises(InvalidValueError, match=rf"number of .* is 1000000; expected at most {most}"):
        problem_from_plain(example((path, [item] * 1_000_000)))


def test_too_many_kinds_models_and_requests_are_refused() -> None:
    many = {f"k{at}": None for at in range(limits.KINDS_MAX + 1)}
    with pytest.raises(InvalidValueError, match=r"number of problem\.kinds is 501; expected at most 500"):
        problem_from_plain(example((("kinds",), many)))
    models = {f"m{at}": None for at in range(limits.MODELS_MAX + 1)}
    with pytest.raises(InvalidValueError, match=r"number of kinds\.A10\.models is 1001; expected at most"):
        problem_from_plain(example((("kinds", "A10", "models"), models)))
    group = EXAMPLE["groups"][0] | {"requests": limits.REQUESTS_PER_GROUP_MAX}
    groups = [group | {"id": f"g{at}"} for at in range(11)]
    message = "number of requests in all groups is 11000000; expected at most 10000000"
    with pytest.raises(InvalidValueError, match=message):
        problem_from_plain(example((("groups",), groups)))
    groups = [EXAMPLE["groups"][0] | {"id": f"g{at}", "model": f"m{at}"} for at in range(1001)]
    with pytest.raises(InvalidValueError, match="number of models is 1002; expected at most 1000"):
        problem_from_plain(example((("groups",), groups)))


def test_whole_numbers_may_be_written_with_a_point() -> None:
    problem = problem_from_plain(example(((*GROUP, "requests"), 3.0), ((*GROUP, "priority"), -1.0)))
    assert (problem.groups[0].requests, problem.groups[0].priority) == (3, -1)
    assert type(problem.groups[0].requests) is int


@pytest.mark.parametrize(
    "changes",
    [
        [(("instances",), [])],
        [(("groups",), [])],
        [(("instances",), []), (("groups",), []), (("kinds",), {})],
        [((*INSTANCE, "loaded_model"), "unknown")],
        [((*INSTANCE, "warm_models"), ["unknown"])],
        [((*INSTANCE, "queue"), ["gone"])],
        [((*GROUP, "time"), {})],
        [((*GROUP, "model"), "unknown")],
        [((*GROUP, "deadline_s"), -1e9)],
    ],
)
def test_unusual_problems_are_problems(changes: list[tuple[tuple[Any, ...], object]]) -> None:
    changed = [change for change in changes if change[0] != ("kinds",)]
    plain = example(*changed)
    if len(changed) < len(changes):
        plain["kinds"] = {}
    problem = problem_from_plain(plain)
    assert problem_to_plain(problem) == plain
    assert verify(problem, random_plan(problem, 1)).violations == ()


def test_the_largest_numbers_add_up() -> None:
    """No sum of what is allowed overflows, or is not a number."""
    most = {"mean": limits.DURATION_MAX_S, "var": limits.DURATION_MAX_S**2}
    group = EXAMPLE["groups"][0] | {
        "requests": 500,
        "deadline_s": -limits.CLOCK_MAX_S,
        "time": {"A10": {"drain_s": most, "tail_s": most}},
    }
    plain = example(
        (("groups",), [group | {"id": f"g{at}"} for at in range(200)]),
        (("now_s",), limits.CLOCK_MAX_S),
        (("miss_weight_s",), limits.DURATION_MAX_S),
    )
    problem = problem_from_plain(plain)
    report = verify(problem, random_plan(problem, 1))
    assert math.isfinite(report.penalty_s) and report.penalty_s > 1e16
    assert report.expected_attainment == 0.0


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PATHS: list[tuple[Any, ...]] = [
    ("kinds",),
    ("instances",),
    ("groups",),
    ("kinds", "A10"),
    COST,
    INSTANCE,
    (*INSTANCE, "busy_s"),
    GROUP,
    (*GROUP, "time"),
    SERVICE,
    ("now_s",),
    (*GROUP, "requests"),
    (*INSTANCE, "queue"),
]


@given(st.sampled_from(PATHS), JSON_LIKE)
def test_whatever_stands_there_is_a_problem_or_one_clear_error(path: tuple[Any, ...], value: object) -> None:
    try:
        problem = problem_from_plain(example((path, value)))
    except InvalidValueError as error:
        assert "; expected " in str(error)
    else:
        assert verify(problem, random_plan(problem, 1)).violations == ()


def test_optional_fields_are_read_and_written_only_if_they_are_set() -> None:
    assert problem_to_plain(problem_from_plain(example())) == EXAMPLE, "what earlier versions read"
    full = example(
        ((*COST, "swap_reload_s"), 0.0),
        ((*COST, "process_bytes"), 2),
        ((*COST, "kv_tokens"), 9000),
        ((*GROUP, "request_tokens"), 499.5),
        ((*INSTANCE, "unloaded_models"), ["m"]),
        ((*INSTANCE, "leave_s"), 1.5),
    )
    problem = problem_from_plain(full)
    assert problem_to_plain(problem) == full
    (cost,), (instance,) = problem.kinds["A10"].models.values(), problem.instances
    assert (cost.swap_reload_s, cost.process_bytes, cost.kv_tokens) == (0.0, 2, 9000)
    assert (instance.unloaded_models, instance.leave_s) == (("m",), 1.5)


def test_only_models_that_sleep_may_sleep_without_weights() -> None:
    plain = example(((*INSTANCE, "unloaded_models"), ["other"]))
    with pytest.raises(InvalidValueError, match="unloaded_models is 'other'; expected models of warm_models"):
        problem_from_plain(plain)
