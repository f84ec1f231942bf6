"""The drawing of a plan."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from qlm.cli.plans.files import read_problem
from qlm.cli.plans.gantt import LETTERS, gantt
from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.problem import Kind, Plan, Problem
from qlm.planner.verify.referee import verify
from support.plan_command import PROBLEM
from support.plans import random_plan, random_problem


def cells(problem: Problem, plan: Plan, columns: int = 41) -> Iterator[str]:
    for line in list(gantt(problem, verify(problem, plan), columns))[1:-1]:
        yield line.plain.split(" ", 1)[1]


def test_the_drawing_shows_who_serves_what_when(tmp_path: Path) -> None:
    """One column per second."""
    path = tmp_path / "one.json"
    time = {"k": {"drain_s": {"mean": 8.0}, "tail_s": {"mean": 2.0}}}
    groups = [
        {"id": "x", "model": "m", "requests": 1, "deadline_s": 100, "time": time},
        {"id": "y", "model": "n", "requests": 1, "deadline_s": 1, "time": time},
    ]
    cost = {"weights_bytes": 1, "swap_warm_s": 1, "swap_cold_s": 5.0, "unload_s": 3.0}
    plain: dict[str, Any] = {
        "version": 1,
        "now_s": 0,
        "kinds": {"k": {"host_memory_bytes": 0, "models": {"m": cost, "n": cost}}},
        "instances": [{"id": "i", "kind": "k", "loaded_model": "m", "busy_s": {"mean": 2.0}}],
        "groups": groups,
    }
    path.write_text(json.dumps(plain), "utf-8")
    problem = read_problem(path)
    plan = Plan(queues={InstanceId("i"): (GroupId("x"), GroupId("y"))})
    (row,) = cells(problem, plan, columns=32)
    # x from 2 s on, with its tail until 12 s; 3 s to unload m and 5 s to load n; y is late.
    assert row == "·" * 2 + "a" * 10 + "░" * 8 + "B" * 10


def test_there_is_nothing_to_draw_without_time() -> None:
    problem = replace(PROBLEM, groups=(), instances=())
    assert list(gantt(problem, verify(problem, Plan(queues={})), 80)) == []


def test_more_models_than_letters_share_them() -> None:
    problem = random_problem(1, groups=200, instances=2, models=40)
    plan = random_plan(problem, 1)
    assert len({group.model for group in problem.groups}) > len(LETTERS)
    assert all(len(row) == 41 - 3 for row in cells(problem, plan))


def test_long_names_leave_room_for_the_drawing() -> None:
    long = replace(PROBLEM.instances[0], id=InstanceId("x" * 100), queue=())
    problem = replace(PROBLEM, instances=(long,), kinds=dict[str, Kind](PROBLEM.kinds))
    lines = list(gantt(problem, verify(problem, random_plan(problem, 1)), 60))
    assert len(lines[1].plain) == 60
