"""The commands that simulate, from the command line to the files they write."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qlm.cli.main import main
from qlm.simulator.report import COLUMNS

SCENARIO = """
name: small
models:
  - {id: mistral-7b, context_tokens: 8192}
instances:
  - {id: gpu, count: 2, accelerator: A100, models: [mistral-7b]}
slo_classes:
  chat: {ttft_ms: 2000}
  batch: {}
workload:
  - name: chat
    arrivals: {poisson: {rate_rps: 10, requests: 60}}
    lengths:
      prompt_tokens: {lognormal: {median: 300, sigma: 0.8, max: 2000}}
      output_tokens: {lognormal: {median: 40, sigma: 0.6, max: 300}}
    model: mistral-7b
    slo: {shares: {chat: 0.7, batch: 0.3}}
    max_tokens: {fixed: 300}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO, "utf-8")
    return path


def qlm(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def test_simulate_writes_the_files_of_the_design(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = qlm("simulate", scenario, "--policy", "fcfs", "--seed", "7", "--out", out)
    assert done.exit_code == 0, done.output
    assert "60 requests" in done.output and "chat" in done.output
    head, *rows = (out / "requests.csv").read_text("utf-8").splitlines()
    assert head.split(",") == list(COLUMNS) and len(rows) == 60
    summed = json.loads((out / "summary.json").read_text("utf-8"))
    assert (summed["policy"], summed["seed"], summed["submitted"]) == ("fcfs", 7, 60)
    wanted = {"attainment", "attainment_by_class", "throughput_rps", "output_tokens_per_s", "swaps"}
    wanted |= {"swap_seconds", "evictions", "plan_p50_ms", "plan_p99_ms", "wall_s"}
    assert wanted <= summed.keys()


def test_equal_seeds_write_equal_files(scenario: Path, tmp_path: Path) -> None:
    written = []
    for number, seed in enumerate(["1", "1", "2"]):
        out = tmp_path / str(number)
        assert qlm("simulate", scenario, "--seed", seed, "--out", out).exit_code == 0
        written.append((out / "requests.csv").read_bytes())
    assert written[0] == written[1] != written[2]


def test_load_makes_requests_come_faster(scenario: Path) -> None:
    plain, doubled = (
        json.loads(qlm("simulate", scenario, "--load", load, "--json").output) for load in ("1", "4")
    )
    assert doubled["simulated_s"] < plain["simulated_s"]


def test_plots_are_pictures(scenario: Path, tmp_path: Path) -> None:
    done = qlm("simulate", scenario, "--out", tmp_path, "--plots")
    assert done.exit_code == 0, done.output
    for name in ("attainment", "queues", "gantt", "use"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_compares_forecasts_with_what_happened(scenario: Path, tmp_path: Path) -> None:
    done = qlm("evaluate", "rct", scenario, "--out", tmp_path, "--plots", "--json")
    assert done.exit_code == 0, done.output
    rows = {(row["slo_class"], row["time"]): row for row in json.loads(done.output)["accuracy"]}
    assert {"wait", "first_token", "completion", "group"} == {time for _, time in rows}
    assert sum(row["count"] for (_, time), row in rows.items() if time == "completion") == 60
    assert json.loads((tmp_path / "accuracy.json").read_text("utf-8")) == json.loads(done.output)
    assert (tmp_path / "completion-predicted.png").read_bytes().startswith(b"\x89PNG")
    assert "R²" in qlm("evaluate", "rct", scenario).output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["simulate", "{scenario}", "--plots"], "--out"),
        (["evaluate", "rct", "{scenario}", "--plots"], "--out"),
        (["simulate", "{missing}"], "missing.yaml"),
        (["evaluate", "rct", "{missing}"], "missing.yaml"),
        (["simulate", "{scenario}", "--policy", "magic"], "magic"),
        (["simulate", "{scenario}", "--seed", "-1"], "-1"),
        (["simulate", "{scenario}", "--load", "0"], "0"),
        (["simulate", "{scenario}", "--load", "nan"], "nan"),
        (["simulate", "{scenario}", "--out", "{scenario}"], "small.yaml"),
        (["evaluate", "rct", "{scenario}", "--every", "0"], "0"),
    ],
)
def test_bad_use_gets_one_clear_line(
    arguments: list[str], complaint: str, scenario: Path, tmp_path: Path
) -> None:
    filled = [each.format(scenario=scenario, missing=tmp_path / "missing.yaml") for each in arguments]
    done = qlm(*filled)
    assert done.exit_code in (1, 2)
    assert "Traceback" not in done.output and isinstance(done.exception, SystemExit)
    assert complaint in done.output.splitlines()[-1]
