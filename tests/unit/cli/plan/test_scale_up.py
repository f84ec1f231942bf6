"""`qlm plan --scale-up`: what more instances would change."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qlm.cli.plans.files import plan_text
from qlm.cli.plans.scaling import KINDS_MAX
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem import Plan, ScaleUp
from qlm.planner.verify.referee import verify
from support.plan_command import PROBLEM, qlm, stored
from support.plans import random_problem


def test_scale_up_is_shown(problem: Path, tmp_path: Path) -> None:
    wanted = replace(plan_edf(PROBLEM), scale_up=(ScaleUp(kind="fast", count=2),))
    path = tmp_path / "scale.json"
    path.write_text(plan_text(wanted), "utf-8")
    done = qlm("plan", "show", "--problem", problem, "--plan", path)
    assert "what is missed would be repaired by 2 more of fast" in done.output


def test_scale_up_is_found_if_asked_for(tmp_path: Path) -> None:
    crowded = random_problem(3, groups=8, instances=1, load=3.0)
    path = stored(tmp_path / "crowded.json", crowded)
    plain = json.loads(qlm("plan", "--problem", path, "--method", "edf", "--json").output)
    asked = json.loads(qlm("plan", "--problem", path, "--method", "edf", "--scale-up", "--json").output)
    assert plain["scale_up"] == []
    assert [set(each) for each in asked["scale_up"]] and asked["scale_up"][0]["count"] >= 1
    assert asked["queues"] == plain["queues"]


def test_scale_up_shows_each_kind_and_what_is_assumed(problem: Path, plan: Path, tmp_path: Path) -> None:
    planned = qlm("plan", "--problem", problem, "--method", "edf", "--scale-up")
    shown = qlm("plan", "show", "--problem", problem, "--plan", plan, "--scale-up")
    assert (planned.exit_code, shown.exit_code) == (0, 0), planned.output + shown.output
    tables = [each.output.split("# what one more instance would change\n")[1] for each in (planned, shown)]
    assert tables[0] == tables[1]
    heads, *rows = [line.split("\t") for line in tables[0].splitlines()[:4]]
    assert heads[:3] == ["fleet", "in time", "late"]
    assert [row[0] for row in rows] == ["as it is", "1 more of fast", "1 more of slow"]
    assert "# Each fleet is planned by the plan generator, from the present plan on." in tables[0]
    asked = json.loads(
        qlm("plan", "show", "--problem", problem, "--plan", plan, "--scale-up", "--json").stdout
    )["scale_up"]
    assert [each["kind"] for each in asked["one_more"]] == ["fast", "slow"]
    for row, forecast in zip(rows, [asked["present"], *asked["one_more"]], strict=True):
        late = forecast["late_requests"]
        assert row[1:3] == [f"{100 * forecast['expected_attainment']:.1f} %", f"{late:.1f}"]
        assert late == pytest.approx(143 * (1 - forecast["expected_attainment"]))
    (fewest,) = asked["fewest"]
    late, added = asked["present"]["late_requests"], f"{fewest['count']} more of {fewest['kind']}"
    saved = f"{asked['saved_requests']:.1f} of the {late:.1f} late requests can be saved by {added}"
    assert tables[0].splitlines()[-1] == saved
    assert 0 < asked["saved_requests"] <= late


def test_scale_up_says_when_more_instances_are_of_no_use(tmp_path: Path) -> None:
    """Nothing is late; then all is, and would be with any fleet."""
    for deadline_s, sentence in (
        (1e6, "no request is expected to be late"),
        (0.0, "more instances would not repair what is missed: at most 1 % of the requests could be saved"),
    ):
        due = tuple(replace(each, deadline_s=deadline_s) for each in PROBLEM.groups)
        path = stored(tmp_path / "due.json", replace(PROBLEM, groups=due))
        done = qlm("plan", "--problem", path, "--method", "edf", "--scale-up")
        assert done.stdout.splitlines()[-1] == sentence


def test_scale_up_counts_what_a_new_plan_of_the_present_fleet_saves(tmp_path: Path) -> None:
    """The plan in force is late, a new one of the same fleet is not: no instance is needed for that."""
    of = random_problem(67, groups=2, instances=1, load=1.0, models=2)
    in_force = Plan(queues={each.id: each.queue for each in of.instances})
    assert verify(of, in_force).late_requests > 30
    path, stale = stored(tmp_path / "stale.json", of), tmp_path / "plan.json"
    stale.write_text(plan_text(in_force), "utf-8")
    done = qlm("plan", "show", "--problem", path, "--plan", stale, "--scale-up")
    assert done.stdout.splitlines()[-1] == "no request is expected to be late"


def test_scale_up_counts_requests_that_run_nowhere(tmp_path: Path) -> None:
    none = random_problem(1, groups=1, instances=0, models=2)
    done = qlm("plan", "--problem", stored(tmp_path / "none.json", none), "--method", "edf", "--scale-up")
    heads, *rows = [
        line.split("\t")
        for line in done.output.split("# what one more instance would change\n")[1].splitlines()
    ]
    at = heads.index("run nowhere")
    assert [row[at] for row in rows[:2]] == ["9", "0"]
    assert rows[-1] == ["9.0 of the 9.0 late requests can be saved by 1 more of fast"]


def test_of_many_kinds_some_are_not_tried(tmp_path: Path) -> None:
    kinds = {f"k{n:02d}": PROBLEM.kinds["fast"] for n in range(KINDS_MAX + 3)}
    groups = tuple(replace(each, time=dict.fromkeys(kinds, each.time["fast"])) for each in PROBLEM.groups)
    fleet = tuple(replace(each, kind="k00") for each in PROBLEM.instances)
    many = replace(PROBLEM, kinds=kinds, instances=fleet, groups=groups[:2])
    done = qlm("plan", "--problem", stored(tmp_path / "many.json", many), "--method", "edf", "--scale-up")
    assert "# … 3 more kinds not tried" in done.output
    assert done.output.count("\n1 more of k") == KINDS_MAX
