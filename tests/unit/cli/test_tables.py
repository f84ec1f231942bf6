"""Tables of a gateway with ids of 40 characters, as terminals of three widths and pipes show them.

`QLM_RENEW_TABLES=1 pytest tests/unit/cli/test_tables.py` writes the files anew; look at the difference.
"""

import io
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from qlm.cli.inspect import render
from qlm.cli.inspect.batches import batch_table, batches_table
from qlm.cli.inspect.console import console
from qlm.cli.inspect.history import history_tables
from qlm.cli.inspect.keys import keys_table
from qlm.cli.inspect.lateness import attainment_table
from qlm.cli.inspect.layout import UNBOUNDED, Table, lines
from qlm.cli.plans.missed import missed_lines
from qlm.cli.plans.scaling import ScalingUp, scaling_lines
from qlm.cli.plans.tables import explanation, instance_tables
from qlm.controller.core.history.codec import history_from_plain
from qlm.domain.ids import GroupId
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.policy.misses import find_misses
from qlm.planner.policy.one_more import one_more
from qlm.planner.problem_json import problem_from_plain
from qlm.planner.verify.explain import explain
from qlm.planner.verify.referee import verify
from support.long_ids import NOW_S, answers_of, cluster_of_long_ids, long_id

ROOT: Final = Path(__file__).resolve().parents[3]
FOLDER: Final = Path(__file__).with_name("tables")
WIDTHS: Final = (80, 120, 200, UNBOUNDED)


@pytest.fixture
async def answers(tmp_path: Path) -> AsyncIterator[Mapping[str, Any]]:
    async with cluster_of_long_ids(tmp_path) as cluster:
        yield await answers_of(cluster, tmp_path / "files")


def plan_tables() -> Sequence[Table]:
    """Lay out a plan by earliest deadline first, its misses, one place, and one more instance."""
    text = (ROOT / "examples/problems/six-groups.json").read_text("utf-8")
    for number, group in enumerate(json.loads(text)["groups"]):
        text = text.replace(f'"{group["id"]}"', f'"{long_id("g", number)}"')
    problem = problem_from_plain(json.loads(text))
    plan, kinds = plan_edf(problem), sorted(problem.kinds)
    parts = [
        *instance_tables(problem, verify(problem, plan), (), 10),
        *missed_lines(problem, find_misses(problem, plan)),
        *explanation(problem, explain(problem, plan, GroupId(long_id("g", 2))), 3),
        *scaling_lines(
            problem,
            ScalingUp(
                forecasts=one_more(problem, plan, kinds, plan_edf),
                fewest=(),
                saved_requests=0.0,
                names={kind: long_id("accelerator", n) for n, kind in enumerate(kinds)},
            ),
        ),
    ]
    return [each for each in parts if isinstance(each, Table)]


def tables(answers: Mapping[str, Any]) -> Sequence[Table]:
    return [
        *render.queues(answers["queues"]),
        attainment_table(answers["queues"]),
        render.groups(answers["groups"]),
        render.instances(answers["instances"]),
        *render.operations(answers["instances"]),
        render.requests(answers["requests"]),
        *render.event_history(answers[f"requests/{long_id('done', 0)}"]),
        render.dead_letters(answers["dead"]),
        *history_tables(history_from_plain(answers["history"]), NOW_S),
        batches_table(answers["batches"], NOW_S),
        batch_table(next(each for path, each in answers.items() if path.startswith("batches/")), NOW_S),
        keys_table(answers["keys"]),
        *plan_tables(),
    ]


@pytest.mark.parametrize("width", WIDTHS)
async def test_tables_are_as_stored(
    answers: Mapping[str, Any], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as still:
        still.setattr(time, "time", lambda: NOW_S)
        text = "\n".join(line for each in tables(answers) for line in lines(each, width)) + "\n"
    file = FOLDER / ("pipe.tsv" if width == UNBOUNDED else f"{width}-columns.txt")
    if os.environ.get("QLM_RENEW_TABLES"):
        FOLDER.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


@pytest.mark.parametrize("width", WIDTHS)
async def test_nothing_is_cut_or_left_out_without_a_sign(answers: Mapping[str, Any], width: int) -> None:
    for table in tables(answers):
        text = "\n".join(lines(table, width))
        (sign,) = [line for line in text.splitlines() if line.startswith("(no room in ")] or [""]
        for column in table.columns:
            left_out = f"(no room in {width} columns" in sign and column.name in sign
            for word in (word for cell in column.cells for word in cell.split()):
                assert word in text or left_out, (table.title, column.name, width)


@pytest.mark.parametrize("width", range(20, 130))
async def test_lines_fit_unless_a_single_word_does_not(width: int) -> None:
    row = ("req-0123456789", "a sentence of several words", 1475, None)
    table = render.table("t", ("request", "why", "prompt>", "on"), [row, row])
    shown = list(lines(table, width))
    assert max(map(len, shown[1:-2])) <= max(width, 30)
    assert any("1475" in line for line in shown)


def test_control_characters_stay_in_their_cell() -> None:
    table = render.table("t", ("a", "b"), [("x\ty\n\x1b[31m", "z")])
    assert list(lines(table, UNBOUNDED))[-1] == "x\\ty\\n\\x1b[31m\tz"


def test_columns_are_left_out_in_the_given_order_and_named() -> None:
    row = ["x" * 20] * 6
    table = render.table("t", ("a", "b", "c", "d", "e", "f"), [row], spare=("b", "c"))
    *_, note, _ = lines(table, 100)
    assert note == "(no room in 100 columns for: b, c; a pipe or --json has all)"


def test_a_pipe_gets_tabs_unless_columns_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width == UNBOUNDED
    monkeypatch.setenv("COLUMNS", "97")
    assert console().width == 97


def test_a_console_shows_what_the_layout_gives() -> None:
    table = render.table("t", ("a", "b"), [("x" * 90, "y" * 90)])
    for width in (50, UNBOUNDED):
        out = io.StringIO()
        Console(file=out, width=width).print(table, crop=False)
        assert out.getvalue().splitlines() == list(lines(table, width))
