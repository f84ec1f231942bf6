"""The planner's benchmarks on tiny problems: they measure what they say, and fail when they should."""

import json
from pathlib import Path

import pytest

from benchmarks import planner
from benchmarks.planner_against import BASELINES, GROUPS, AgainstRow, against, groups_of, show
from benchmarks.planner_best import slow_plan
from benchmarks.planner_exact import production_problem
from benchmarks.planner_gap import expected_row, sampled_row
from benchmarks.planner_gap import show as show_gaps
from benchmarks.planner_growth import grown
from benchmarks.planner_problems import live, medium
from benchmarks.planner_second import planned, planned_again
from benchmarks.planner_timing import gap_to, quantiles, timed, within
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.verify.referee import verify


def test_a_gap_is_over_the_least_penalty_or_a_second_per_request() -> None:
    problem = production_problem(6, 1)
    requests = sum(group.requests for group in problem.groups)
    assert gap_to(problem, 3.0 * requests, 2.0 * requests) == pytest.approx(0.5)
    assert gap_to(problem, 0.5 * requests, 0.0) == pytest.approx(0.5)
    assert gap_to(problem, 1.0 * requests, 2.0 * requests) == pytest.approx(-0.5)


def test_what_is_timed_is_done_once_and_takes_time() -> None:
    values = iter([sum(range(10_000)), -1])
    result, took = timed(lambda: next(values))
    assert result == sum(range(10_000))
    assert next(values) == -1
    assert took.wall_s > 0
    assert took.cpu_s > 0
    assert quantiles([], (0.5,)) == [0.0]


@pytest.mark.parametrize("seed", range(4))
def test_fast_is_never_below_a_proven_optimum_and_close_to_it(seed: int) -> None:
    problem = production_problem(6, seed)
    for row in (expected_row(problem, seed, 60.0), sampled_row(problem, seed, 60.0)):
        assert row.proven
        assert -1e-6 <= row.gap <= 0.05


def test_a_worst_gap_beyond_what_is_wanted_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    row = expected_row(production_problem(6, 1), 1, 60.0)
    show_gaps("as it is", [row])
    assert capsys.readouterr().out.rstrip().endswith("yes")
    type_ = type(row)
    bad = type_(row.groups, 1, True, row.exact_s, row.fast_s, 0.06, 0.1, 0.1)
    show_gaps("one bad", [bad, *[row] * 99])
    assert capsys.readouterr().out.rstrip().endswith("NO")
    show_gaps("what is not proven does not count", [row, type_(6, 1, False, 1.0, 2.0, 1.0, 0.1, 0.1)])
    assert "1 of 2" in capsys.readouterr().out


@pytest.mark.parametrize("seed", [0, 3])
def test_fast_is_compared_with_the_best_baseline(seed: int) -> None:
    row = against(seed, BASELINES)
    problem = medium(seed, groups_of(seed))
    assert row.groups == len(problem.groups)
    assert row.best_s <= verify(problem, plan_edf(problem)).penalty_s
    assert not row.lost


def test_baseline_problems_are_of_all_sizes() -> None:
    sizes = {groups_of(seed) for seed in range(500)}
    assert sizes == set(range(GROUPS[0], GROUPS[1] + 1))


def test_a_loss_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    won = AgainstRow(1, 20, False, 1.0, 2.0, "edf", 0.1)
    lost = AgainstRow(2, 20, True, 2.0, 1.999, "sjf", 0.1)
    assert lost.lost
    assert not won.lost
    assert not AgainstRow(3, 20, True, 2.0, 2.0, "sjf", 0.1).lost
    show([won, lost])
    assert "2 problems, 1 lost" in capsys.readouterr().out


def test_a_busy_problem_is_planned_bounded_and_planned_again(capsys: pytest.CaptureFixture[str]) -> None:
    problem = live(1, groups=120, instances=8, models=4)
    plan, row = planned(problem, within(0.3), 1e12)
    assert row["bound_s"] <= row["penalty_s"] == pytest.approx(verify(problem, plan).penalty_s)
    assert row["penalty_s"] <= row["edf"]
    assert row["worse"] < 0
    again = planned_again(problem, plan, 1, within(0.3), within(0.05, by_processor=True))
    assert again["again_penalty_s"] > 0
    assert set(again["others_s"]) == {"the same, with the time limit of a plan", "from nothing, moves free"}
    assert "re-plan" in capsys.readouterr().out


def test_a_size_is_measured() -> None:
    row = grown(20, 2)
    assert (row.groups, row.instances, row.models) == (20, 2, 6)
    assert row.gap >= 0
    assert row.plan_s > 0


def test_a_slow_annealing_holds_and_is_the_same_again() -> None:
    problem = live(2, groups=90, instances=6, models=4)
    plan = slow_plan(problem, 3, 20_000)
    report = verify(problem, plan)
    assert not report.violations
    assert report.penalty_s < verify(problem, plan_edf(problem)).penalty_s
    assert slow_plan(problem, 3, 20_000) == plan


def test_parts_run_by_name_and_are_written_down(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    few = ["--groups", "60", "--seeds", "1", "--searches", "1", "--moves", "5e3"]
    sizes = ["--sizes", "6", "--problems", "1", "--sampled", "1", "--shepherd", "1", "--largest", "10"]
    parts = ["--part", "gap", "--part", "baselines", "--part", "best", "--part", "growth"]
    assert planner.main([*parts, *few, *sizes, "--out", str(out)]) == 0
    result = json.loads(out.read_text("utf-8"))
    assert result["gap"]["expected"][0]["groups"] == 6
    assert len(result["baselines"]["rows"]) == 1
    assert result["best"]["best_s"]["1"] > 0
    assert [row["groups"] for row in result["growth"]["rows"]] == [10]
    assert 0 < result["peak_memory_gb"] < 16
