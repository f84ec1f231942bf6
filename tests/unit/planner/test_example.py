"""The worked example of docs/planning.md: six groups on two instances."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from qlm.cli.main import main
from qlm.domain.ids import GroupId, InstanceId
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.exact.solve import solve_exact
from qlm.planner.fast.solve import solve_fast
from qlm.planner.problem import Plan, Problem
from qlm.planner.problem_json import problem_from_plain
from qlm.planner.verify.referee import verify

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "planning.md").read_text("utf-8")


@pytest.fixture(scope="module")
def problem() -> Problem:
    text = (ROOT / "examples" / "problems" / "six-groups.json").read_text("utf-8")
    return problem_from_plain(json.loads(text))


def queues(plan: Plan) -> dict[str, str]:
    return {id: ", ".join(queue) for id, queue in plan.queues.items()}


@pytest.mark.parametrize("method", ["exact", "fast"])
def test_the_best_plan_is_the_one_described(problem: Problem, method: str) -> None:
    plan = solve_exact(problem) if method == "exact" else solve_fast(problem)
    assert queues(plan) == {"a10-0": "code-1, report-1", "a100-0": "chat-1, code-2, chat-2, batch-1"}
    report = verify(problem, plan)
    assert report.penalty_s == pytest.approx(6011.0)
    for expected in (*queues(plan).values(), "6 011 s", "10 of the 40"):
        assert expected in TEXT


def test_earliest_deadline_first_swaps_at_once_and_pays_for_it(problem: Problem) -> None:
    plan = plan_edf(problem)
    penalty_s = verify(problem, plan).penalty_s
    assert penalty_s > 6011.0
    for expected in (*queues(plan).values(), f"{penalty_s:,.0f} s".replace(",", " ")):
        assert expected in TEXT


def test_a_second_a100_repairs_it(problem: Problem) -> None:
    first = problem.instances[1]
    more = replace(problem, instances=(*problem.instances, replace(first, id=InstanceId("a100-1"))))
    assert verify(more, solve_exact(more)).penalty_s == 0.0
    assert GroupId("code-2") in {group for queue in solve_exact(more).queues.values() for group in queue}


def test_one_more_instance_does_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    (line, shown) = re.findall(r"```sh\n(.*)\n```\n\n```text\n(what one more .*?)```", TEXT, re.DOTALL)[0]
    columns, program, *words = shlex.split(line)
    assert (columns, program) == ("COLUMNS=120", "qlm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0
    assert shown in done.output
