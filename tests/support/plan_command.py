"""`qlm plan` run in this process, on a problem drawn by a seed."""

import json
from pathlib import Path
from typing import Final

from click.testing import CliRunner, Result

from qlm.cli.main import main
from qlm.planner.problem import Problem
from qlm.planner.problem_json import problem_to_plain
from support.plans import random_problem

PROBLEM: Final = random_problem(4, groups=8, instances=3, priorities=2)


def stored(path: Path, problem: Problem) -> Path:
    path.write_text(json.dumps(problem_to_plain(problem)), "utf-8")
    return path


def qlm(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])
