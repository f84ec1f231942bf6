"""`qlm compare`: the same requests under several policies, in one table."""

import csv
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qlm.cli.comparison.report import cells, runs_csv, shown
from qlm.cli.comparison.runs import Figures, Run
from qlm.cli.comparison.statistics import interval, spread
from qlm.cli.inspect.layout import lines
from qlm.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
SCENARIO = """
name: {name}
models:
  - {{id: mistral-7b, context_tokens: 8192}}
instances:
  - {{id: gpu, accelerator: A10, models: [mistral-7b]}}
slo_classes:
  chat: {{ttft_ms: 2000}}
workload:
  - name: chat
    arrivals: {{poisson: {{rate_rps: 10, requests: 40}}}}
    lengths:
      prompt_tokens: {{lognormal: {{median: 300, sigma: 0.8, max: 2000}}}}
      output_tokens: {{lognormal: {{median: 40, sigma: 0.6, max: 300}}}}
    model: mistral-7b
    slo: chat
    max_tokens: {{fixed: 300}}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO.format(name="small"), "utf-8")
    return path


def compare(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["compare", *(str(each) for each in arguments)])


def a_run(policy: str, seed: int, met: float | None) -> Run:
    figures = Figures(
        met=met,
        worst_class=None if met is None else met / 2,
        served_rps=2.0,
        p99_first_token_s=1.5,
        swaps=3,
        evictions=4,
        again=0.01,
        idle=0.02,
    )
    return Run(scenario="s", load=1.0, policy=policy, seed=seed, figures=figures)


def test_each_policy_gets_the_same_requests_and_rows_are_those_of_simulate(
    scenario: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = compare(
        scenario, "--policy", "fcfs,edf", "--seeds", "2", "--first-seed", "4", "--load", "0.5,2", "--out", out
    )
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO((out / "compare.csv").read_text("utf-8"))))
    found = [(row["load"], row["seed"], row["policy"]) for row in rows]
    assert found == [(load, s, p) for load in ("0.5", "2") for s in ("4", "5") for p in ("fcfs", "edf")]
    alone = CliRunner().invoke(
        main,
        ["simulate", str(scenario), "--policy", "edf", "--seed", "5", "--load", "2", "--json"],
    )
    summed = json.loads(alone.stdout)
    assert float(rows[-1]["met"]) == pytest.approx(summed["attainment"], rel=1e-5)
    assert float(rows[-1]["served_rps"]) == pytest.approx(summed["throughput_rps"], rel=1e-5)


def test_differences_to_the_first_policy_are_paired_by_seed() -> None:
    runs = [
        a_run(policy, seed, met)
        for seed, one, other in ((1, 0.5, 0.6), (2, 0.9, 0.98))
        for policy, met in (("first", one), ("other", other))
    ]
    first, other = cells(runs)
    assert first.difference is None and first.means.met == pytest.approx(0.7)
    assert other.difference == pytest.approx(0.09)
    assert other.difference_95 is not None and other.difference_95[0] == pytest.approx(0.09 - 12.706 * 0.01)
    assert other.met_spread == pytest.approx(0.38 / 2**0.5)
    text = "\n".join(lines(shown([first, other]), 200))
    assert "against first, points" in text and "+9.0 [-3.7, +21.7]" in text and "means over 2 seeds" in text
    assert len(runs_csv(runs).splitlines()) == 5


def test_one_seed_has_no_spread_and_no_interval() -> None:
    first, other = cells([a_run("first", 1, 0.5), a_run("other", 1, 0.6)])
    assert (first.met_spread, other.difference_95) == (None, None)
    assert "+10.0" in "\n".join(lines(shown([first, other]), 200))


def test_a_seed_without_a_figure_does_not_count_in_its_mean() -> None:
    runs = [
        a_run("first", 1, 0.5),
        a_run("first", 2, None),
        a_run("other", 1, 0.6),
        a_run("other", 2, 0.9),
        a_run("third", 1, None),
        a_run("third", 2, None),
    ]
    first, other, third = cells(runs)
    assert (first.means.met, first.means.worst_class, first.met_spread) == (0.5, 0.25, None)
    assert other.difference == pytest.approx(0.1) and other.difference_95 is None
    assert (third.means.met, third.difference) == (None, None)


def test_figures_that_no_run_has_are_left_empty(tmp_path: Path) -> None:
    path = tmp_path / "late.yaml"
    late = "arrivals: {bursts: {count: 5, start_s: 100}}"
    text = SCENARIO.format(name="late").replace("arrivals: {poisson: {rate_rps: 10, requests: 40}}", late)
    path.write_text(f"{text}limits: {{horizon_s: 5}}\n", "utf-8")
    options = (path, "--policy", "fcfs,edf", "--seeds", "1", "--out", tmp_path, "--plots")
    done = compare(*options)
    assert done.exit_code == 0, done.output
    shown_rows = [line.split()[3:9] for line in done.output.splitlines() if line.startswith("late")]
    assert shown_rows == [["-"] * 6] * 2
    rows = list(csv.DictReader(io.StringIO((tmp_path / "compare.csv").read_text("utf-8"))))
    assert [(row["met"], row["p99_first_token_s"], row["swaps"]) for row in rows] == [("", "", "0")] * 2
    means = [each["means"] for each in json.loads(compare(*options, "--json").stdout)]
    assert [(each["met"], each["served_rps"]) for each in means] == [(None, None)] * 2


@pytest.mark.parametrize(("count", "t"), [(3, 4.303), (11, 2.228), (31, 2.042)])
def test_intervals_are_by_students_t(count: int, t: float) -> None:
    values = [float(each % 2) for each in range(count)]
    centre, (low, high) = sum(values) / count, interval(values) or (0.0, 0.0)
    deviation = spread(values) or 0.0
    assert low + high == pytest.approx(2 * centre)
    assert high - centre == pytest.approx(t * deviation / count**0.5, rel=2e-3)


def test_the_picture_has_bars_for_one_load_and_lines_for_several(scenario: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(SCENARIO.format(name="other"), "utf-8")
    for name, loads in (("one", "1"), ("two", "0.5,1")):
        done = compare(
            scenario,
            other,
            "--policy",
            "fcfs,sjf",
            "--seeds",
            "1",
            "--load",
            loads,
            "--plots",
            "--out",
            tmp_path / name,
            "--json",
        )
        assert done.exit_code == 0, done.output
        assert len(json.loads(done.stdout)) == 4 * len(loads.split(","))
        assert (tmp_path / name / "compare.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "fcfs,none"), "none"),
        (("--policy", "fcfs,fcfs"), "names one of them twice"),
        (("--load", "1,0"), "0"),
        (("--load", "1,1.0"), "names one of them twice"),
        (("--load", "1,,2"), "valid float"),
        (("--plots",), "--plots needs --out"),
        (("--seeds", "0"), "1<=x<=1000"),
        (("--first-seed", str(2**63)), str(2**63 - 1)),
        (("--first-seed", str(2**63 - 2), "--seeds", "3"), f"3 from {2**63 - 2} on end beyond {2**63 - 1}"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_simulated(
    arguments: tuple[str, ...], message: str, scenario: Path
) -> None:
    done = compare(scenario, *arguments)
    assert done.exit_code == 2 and message in done.output


def test_all_scenarios_are_read_before_the_first_simulation(scenario: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("name: wrong\n", "utf-8")
    done = compare(scenario, wrong)
    assert done.exit_code == 2 and str(wrong) in done.output
    assert "comparison" not in done.output


def test_scenarios_of_one_name_are_refused_as_their_rows_would_be_mixed(
    scenario: Path, tmp_path: Path
) -> None:
    variant = tmp_path / "variant.yaml"
    variant.write_text(SCENARIO.format(name="small").replace("rate_rps: 10", "rate_rps: 20"), "utf-8")
    done = compare(scenario, variant)
    assert done.exit_code == 2
    assert f"{variant} has the name 'small', as {scenario}" in done.output.replace("\n", "")


def test_the_readme_tells_what_its_comparison_prints() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    (words,) = re.findall(r"qlm (compare \S+/quickstart\.yaml .*--load 2)", text)
    (ours, theirs) = re.findall(r"`qlm` meets ([\d.]+) % of .* served, ([\d.]+) %", text)[0]
    done = CliRunner().invoke(main, [*shlex.split(words.replace("examples/", f"{ROOT}/examples/")), "--json"])
    assert done.exit_code == 0, done.output
    met = {each["policy"]: f"{100 * each['means']['met']:.1f}" for each in json.loads(done.stdout)}
    assert met == {"qlm": ours, "fcfs": theirs}
