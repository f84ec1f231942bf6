"""The objective that a plan is priced by, from the command line."""

import json
from pathlib import Path

import pytest

from qlm.planner.baselines.edf import plan_edf
from qlm.planner.verify.referee import verify
from support.plan_command import PROBLEM, qlm


def test_the_objective_of_the_paper(problem: Path) -> None:
    done = qlm("plan", "--problem", problem, "--method", "edf", "--objective", "paper")
    wanted = verify(PROBLEM, plan_edf(PROBLEM), objective="paper").penalty_s
    assert f"penalty {wanted:.6g} s; " in done.output
    assert "edf does not minimise the objective paper, which only prices its plan" in done.output
    exact = qlm("plan", "--problem", problem, "--method", "exact", "--objective", "paper", "--json")
    assert json.loads(exact.output)["penalty_s"] < wanted


@pytest.mark.parametrize("method", ["edf", "exact"])
def test_a_stored_plan_names_the_objective_that_it_was_priced_by(
    problem: Path, tmp_path: Path, method: str
) -> None:
    plan = tmp_path / "plan.json"
    made = ("plan", "--problem", problem, "--method", method, "--objective", "paper", "--out", plan)
    assert qlm(*made).exit_code == 0
    penalty_s = json.loads(plan.read_text())["penalty_s"]
    files = ("--problem", problem, "--plan", plan)
    shown = qlm("plan", "show", *files)
    assert (shown.exit_code, f"penalty {penalty_s:.6g} s" in shown.output) == (0, True), shown.output
    assert (
        qlm("plan", "explain", "g0", *files).output
        == qlm("plan", "explain", "g0", *files, "--objective", "paper").output
    )
    other = json.loads(qlm("plan", "show", *files, "--objective", "requests", "--json").output)
    assert (other["objective"], other["violations"]) == ("requests", [])
    assert "no plan is below" not in qlm("plan", "show", *files, "--objective", "requests").output


def test_the_penalty_that_a_plan_claims_by_its_objective_is_checked(problem: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    qlm("plan", "--problem", problem, "--method", "edf", "--objective", "paper", "--out", plan)
    stored_plan = json.loads(plan.read_text())
    plan.write_text(json.dumps(stored_plan | {"penalty_s": stored_plan["penalty_s"] - 1}))
    shown = qlm("plan", "show", "--problem", problem, "--plan", plan)
    assert (shown.exit_code, "claimed_penalty" in shown.output) == (1, True)
    plan.write_text(json.dumps(stored_plan | {"objective": "speed"}))
    refused = qlm("plan", "show", "--problem", problem, "--plan", plan)
    assert refused.exit_code == 2
    assert "plan.objective is 'speed'; expected requests or paper" in refused.output
