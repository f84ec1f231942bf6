"""Figures of the papers: their measures by hand, and runs that repeat to the byte."""

import random
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from click.testing import CliRunner

from qlm.cli.figures.catalogue import FIGURES, highest_load
from qlm.cli.figures.figure import SCENARIOS, Arm, Figure, Row
from qlm.cli.figures.measures import Measures, measured
from qlm.cli.figures.names import FIGURE_NAMES
from qlm.cli.figures.report import rows_csv
from qlm.cli.figures.running import TokenTimes, arm_scenario, run
from qlm.cli.main import main
from qlm.cli.scenario.file import load_scenario
from qlm.domain.streaming.experience import qoe
from qlm.domain.streaming.reader import Reader
from qlm.domain.streaming.timeline import Timeline
from qlm.simulator.cluster.event_queue import EPOCH_NS
from qlm.simulator.results import Outcomes, SimulationResult
from qlm.simulator.seeds import Seeds

NOTHING = Measures(**dict.fromkeys((each.name for each in fields(Measures)), 0.0))


def test_the_command_lists_all_figures() -> None:
    assert tuple(FIGURES) == FIGURE_NAMES


def small(name: str) -> Figure:
    """Return a figure with two arms, and one point at which little waits."""
    figure = FIGURES[name]
    at_once = figure.at_once[-1:]
    return replace(
        figure,
        loads=figure.loads and (0.5,),
        at_once=at_once,
        arms=(Arm("fcfs", "fcfs"), Arm("andes", "andes")),
    )


def result_of(timelines: list[Timeline]) -> SimulationResult:
    """Return a result whose readers lived through these, of one class that reads 10 tokens per second."""
    scenario = load_scenario(SCENARIOS / "tokenflow-a100.yaml")
    workload = scenario.make_workload(Seeds(1))
    columns = ("arrival_ns", "model", "tenant", "slo_class", "prompt_tokens", "output_tokens", "max_tokens")
    rows = {name: getattr(workload, name)[: len(timelines)] for name in columns}
    outcomes = Outcomes.of(len(timelines))
    for number, timeline in enumerate(timelines):
        outcomes.read(number, timeline)
        outcomes.tokens[number] = timeline.tokens
        outcomes.first_token_ns[number], outcomes.ended_ns[number] = 10**9, 60 * 10**9
    return SimulationResult(
        scenario=scenario,
        workload=replace(workload, **rows),
        policy="fcfs",
        seed=1,
        outcomes=outcomes,
        instances=(),
    )


def test_the_quality_of_experience_is_that_of_equation_1() -> None:
    draw, timelines = random.Random(5), list[Timeline]()
    for _ in range(30):
        timeline, at_s = Timeline(Reader(1.0, 10.0)), 0.0
        for _ in range(draw.randrange(1, 60)):
            at_s += draw.expovariate(8.0)
            timeline.deliver(1, at_s)
        timelines.append(timeline)
    measures = measured(result_of(timelines), [[1.0]] * len(timelines))
    assert measures.qoe == pytest.approx(np.mean([qoe(each) for each in timelines]))
    assert 0 < measures.qoe < 1


def test_requests_without_an_answer_count_with_nothing() -> None:
    timely = Timeline(Reader(1.0, 10.0))
    timely.deliver(1, 0.5)
    measures = measured(result_of([timely, Timeline(Reader(1.0, 10.0))]), [[0.5], []])
    assert (measures.qoe, measures.qoe_star) == (0.5, 0.5)


@pytest.mark.parametrize("name", FIGURES)
def test_equal_seeds_give_equal_bytes(name: str) -> None:
    first, second = (list(run(small(name), (3,), lambda what: None, requests=12)) for _ in range(2))
    assert rows_csv(FIGURES[name], first) == rows_csv(FIGURES[name], second)
    assert {each.arm for each in first} == {"fcfs", "andes"}
    assert all(each.measures.effective_tokens_per_s <= each.measures.tokens_per_s for each in first)
    assert all(0 < each.measures.qoe <= 1 for each in first)


def test_the_tokens_of_a_report_are_spread_since_the_one_before() -> None:
    scenario = load_scenario(SCENARIOS / "tokenflow-a100.yaml")
    times = TokenTimes(scenario.make_workload(Seeds(1)))
    times.on_output(4, 1, EPOCH_NS + 10**9)
    times.on_output(4, 4, EPOCH_NS + 3 * 10**9)
    assert times.times_s[4] == pytest.approx([1.0, 1.5, 2.0, 2.5, 3.0])


def test_the_highest_load_is_where_quality_falls_below_the_good_one() -> None:
    qualities = {0.5: 1.0, 1.0: 0.95, 1.5: 0.85, 2.0: 0.4}
    rows = [Row(load, "x", 1, replace(NOTHING, qoe=q)) for load, q in qualities.items()]
    assert highest_load(rows, "x", "qoe") == pytest.approx(1.25)
    assert highest_load(rows[:2], "x", "qoe") is None
    assert highest_load(rows[3:], "x", "qoe") is None
    claim = FIGURES["andes-rate"].claims[0]
    both = [replace(row, arm=arm) for row in rows for arm in ("fcfs", "andes")]
    assert claim.ours(both) == "1.00x"
    assert claim.ours(both[:4]) == "beyond these loads"


def test_requests_at_once_arrive_at_the_start_and_in_order() -> None:
    figure = small("annealing-v100-2")
    scenario = arm_scenario(figure, figure.arms[0], figure.at_once[0], requests=9)
    drawn, at_once = load_scenario(SCENARIOS / figure.scenario), scenario.make_workload(Seeds(2))
    assert at_once.arrival_ns.tolist() == [0] * 9
    assert (at_once.prompt_tokens == drawn.make_workload(Seeds(2)).prompt_tokens[:9]).all()
    assert {profile.seqs_max for profile in scenario.fleet.profiles.values()} == {2}


def test_requests_without_a_reader_count_in_what_is_met_alone() -> None:
    row = next(run(small("annealing-v100-4"), (3,), lambda what: None, requests=4))
    figure = small("annealing-v100-4")
    classes = arm_scenario(figure, figure.arms[0], 4.0, requests=4).make_workload(Seeds(3)).slo_class
    assert set(classes.tolist()) == {0, 1}
    assert row.measures.qoe_star == 1.0 and row.measures.met == 1.0
    assert row.measures.met_per_latency_s == pytest.approx(1 / row.measures.latency_s)


def test_rules_of_offloading_reach_the_engines() -> None:
    figure = FIGURES["tokenflow-a100"]
    arms = [each for each in figure.arms if each.name in ("tokenflow", "tokenflow, written late")]
    through, late = run(replace(figure, arms=tuple(arms)), (1,), lambda what: None, requests=50)
    assert late.measures.makespan_s > through.measures.makespan_s


def test_points_of_more_requests_than_asked_for_are_left_out() -> None:
    figure = FIGURES["annealing-v100-1"]
    assert figure.up_to(None) is figure
    assert figure.up_to(8).points == (4, 6, 8)
    assert figure.up_to(1).points == (1,)
    assert FIGURES["andes-rate"].up_to(8) is FIGURES["andes-rate"]


def test_measures_of_no_reader_are_0() -> None:
    rows = run(small("annealing-v100-1"), tuple(range(1, 9)), lambda what: None, requests=1)
    found = {row.measures.qoe_star for row in rows}
    assert found == {0.0, 1.0}, "the only request is a chat or a code completion"


def test_a_claim_of_the_best_draw_compares_equal_requests() -> None:
    claim = FIGURES["annealing-v100-1"].claims[0]
    rows = [
        Row(point, arm, seed, replace(NOTHING, met=met))
        for point, arm, seed, met in (
            (4, "fcfs", 1, 0.5), (4, "annealing", 1, 0.75), (4, "fcfs", 2, 0.4), (4, "annealing", 2, 0.4),
            (6, "fcfs", 1, 0.0), (6, "annealing", 1, 0.5),
        )
    ]  # fmt: skip
    assert claim.ours(rows) == "+50.0% at 4"
    assert claim.ours(rows[4:]) == "none"


def test_the_command_writes_csv_picture_and_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = replace(small("tokenflow-a100"), claims=FIGURES["andes-rate"].claims[3:4])
    monkeypatch.setitem(FIGURES, "tokenflow-a100", one)
    arguments = [
        "evaluate",
        "streaming",
        "tokenflow-a100",
        "--out",
        str(tmp_path),
        "--plots",
        "--json",
        "--requests",
        "12",
    ]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 0, found.output
    answer = orjson.loads(found.stdout)["tokenflow-a100"]
    assert len(answer["rows"]) == 2 and answer["claims"][0]["here"].endswith("x at 1")
    header, *rows = (tmp_path / "tokenflow-a100.csv").read_text("utf-8").splitlines()
    assert header.startswith("load,policy,seed,met,latency_s,") and len(rows) == 2
    assert (tmp_path / "tokenflow-a100.png").read_bytes().startswith(b"\x89PNG")


def test_pictures_need_a_folder() -> None:
    found = CliRunner().invoke(main, ["evaluate", "streaming", "--plots"])
    assert found.exit_code == 2 and "--out" in found.output
