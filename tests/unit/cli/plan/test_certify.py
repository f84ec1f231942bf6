"""`qlm plan --certify` from the command line."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from benchmarks.planner_live import live
from qlm.cli.main import main
from qlm.cli.plans.files import read_plan
from qlm.planner.problem_json import problem_to_plain
from qlm.planner.verify.referee import gap, verify

pytestmark = pytest.mark.timeout(400)  # the first call compiles
PROBLEM = live(1, groups=9, instances=2, models=2)


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(problem_to_plain(PROBLEM)), "utf-8")
    return path


def qlm(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_json_has_the_plan_and_its_certificate(problem: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = qlm("plan", "--problem", problem, "--certify", "--time-limit", 60, "--json", "--out", out)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    made, plan = json.loads(done.stdout), read_plan(out, PROBLEM)
    certificate = made["certificate"]
    assert made["plan"] == json.loads(out.read_text("utf-8"))
    assert certificate["penalty_s"] == pytest.approx(verify(PROBLEM, plan).penalty_s)
    assert certificate["lower_bound_s"] == plan.lower_bound_s
    assert 0 < certificate["lower_bound_s"] <= certificate["penalty_s"]
    assert certificate["gap"] == pytest.approx(gap(PROBLEM, plan))
    assert certificate["ended"] in ("proven", "converged")
    assert certificate["took_s"] > 0


def test_says_what_it_proved_and_why_it_stopped(problem: Path) -> None:
    arguments = ["plan", "--problem", problem, "--method", "edf", "--certify", "--time-limit"]
    done = qlm(*arguments, 60)
    assert done.exit_code == 0, done.output
    assert "certificate: the plan costs " in done.output
    assert ", every plan at least " in done.output
    assert "the method proves no higher bound" in done.output
    stopped = qlm(*arguments, 0.001)
    assert "stopped at the time limit; more time may prove a higher bound" in stopped.output


def test_compiles_before_the_time_limit_begins(problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without compiled code, half a minute beyond the limit went by, and nothing was left for the proof."""
    passed_s = 0.0

    def compile_slowly(method: str) -> None:
        nonlocal passed_s
        passed_s += 1000.0

    clock = SimpleNamespace(perf_counter=lambda: passed_s)
    monkeypatch.setattr("qlm.cli.commands.plan.problem.warm_up_certified", compile_slowly)
    monkeypatch.setattr("qlm.cli.commands.plan.problem.time", clock)
    monkeypatch.setattr("qlm.cli.plans.certify.time", clock)
    done = qlm("plan", "--problem", problem, "--method", "edf", "--certify", "--time-limit", 60)
    assert passed_s == 1000.0
    assert "the method proves no higher bound" in done.output


def test_refuses_an_objective_that_it_does_not_bound(problem: Path) -> None:
    done = qlm("plan", "--problem", problem, "--certify", "--objective", "paper")
    assert done.exit_code == 2
    assert "--objective is 'paper'; expected requests, with --certify" in done.stderr
