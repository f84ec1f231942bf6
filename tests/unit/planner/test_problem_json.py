"""The published form of planning problems."""

import json
from typing import Any

import pytest

from qlm.domain.errors import InvalidValueError
from qlm.planner.problem_json import problem_from_plain, problem_to_plain

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


def test_a_problem_survives_the_way_through_json() -> None:
    problem = problem_from_plain(json.loads(json.dumps(EXAMPLE)))
    assert problem_to_plain(problem) == EXAMPLE
    assert problem_from_plain(problem_to_plain(problem)) == problem


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("version",), 2, "version"),
        (("surprise",), 1, "problem"),
        (("now_s",), float("nan"), "now_s"),
        (("groups", 0, "requests"), -1, "requests"),
        (("groups", 0, "requests"), "three", "requests"),
        (("groups", 0, "time", "A10", "drain_s", "mean"), -1.0, "mean"),
        (("groups", 0, "surprise"), 1, "groups[0]"),
        (("instances", 0, "kind"), "H100", "kind"),
        (("kinds", "A10", "models", "m", "swap_warm_s"), True, "swap_warm_s"),
    ],
)
def test_a_wrong_field_is_refused_by_name(path: tuple[Any, ...], value: object, named: str) -> None:
    plain = json.loads(json.dumps(EXAMPLE))
    spot = plain
    for step in path[:-1]:
        spot = spot[step]
    spot[path[-1]] = value
    with pytest.raises(InvalidValueError) as caught:
        problem_from_plain(plain)
    assert named in str(caught.value)


def test_duplicate_ids_are_refused() -> None:
    plain = json.loads(json.dumps(EXAMPLE))
    plain["groups"] *= 2
    with pytest.raises(InvalidValueError, match="groups is 'g'; expected each id once"):
        problem_from_plain(plain)
