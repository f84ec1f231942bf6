"""Files of a problem, and of a plan of it by earliest deadline first."""

from pathlib import Path

import pytest

from qlm.cli.plans.files import plan_text
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.verify.referee import judged
from support.plan_command import PROBLEM, stored


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    return stored(tmp_path / "problem.json", PROBLEM)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(plan_text(judged(PROBLEM, plan_edf(PROBLEM))), "utf-8")
    return path
