"""The benchmark of drawn scenarios, whole, on one small scenario."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.motion.drawn import main
from benchmarks.motion.runs import BOUND, HINDSIGHT, read

SCENARIO = {
    "capacity_rps": 4.0,
    "models": [{"id": "mistral-7b"}, {"id": "vicuna-13b"}],
    "instances": [{"id": "a", "count": 2, "accelerator": "A100", "models": ["mistral-7b", "vicuna-13b"]}],
    "slo_classes": {"soon": {"ttft_ms": 5000}, "batch": {}},
    "workload": [
        {
            "name": f"{model}-0",
            "arrivals": {"poisson": {"rate_rps": 2, "duration_s": 10}},
            "lengths": {"prompt_tokens": {"constant": 200}, "output_tokens": {"constant": 40}},
            "model": model,
            "slo": {"shares": {"soon": 0.8, "batch": 0.2}},
        }
        for model in ("mistral-7b", "vicuna-13b")
    ],
}


def test_the_benchmark_reports_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    scenarios, state, out = tmp_path / "scenarios", tmp_path / "runs.jsonl", tmp_path / "report.json"
    scenarios.mkdir()
    (scenarios / "drawn-00001.yaml").write_text(yaml.safe_dump(SCENARIO), "utf-8")
    common = ["--scenarios", "1", "--loads", "0.8", "--seeds", "1", "--jobs", "1", "--subject", "edf"]
    common += ["--folder", str(scenarios), "--state", str(state), "--out", str(out), "--arms"]
    assert main([*common, "fcfs"]) == 0
    first = state.read_text("utf-8")
    assert len(first.splitlines()) == 2
    assert main([*common, "fcfs", "edf+rules", HINDSIGHT, BOUND]) == 0
    assert state.read_text("utf-8").startswith(first)
    runs = {run.arm: run for run in read(state).values()}
    assert set(runs) == {"edf", "fcfs", "edf+rules", HINDSIGHT, BOUND}
    assert len({run.requests for run in runs.values()}) == 1
    report = json.loads(out.read_text("utf-8"))
    (cell,) = report["cells"]
    assert cell["best_rival"] in ("fcfs", "edf+rules")
    assert cell["attainment"][BOUND] == pytest.approx(100 * runs[BOUND].attainment, abs=0.01)
    below = 100 * (runs[BOUND].attainment - runs["edf"].attainment)
    assert cell["below_bound"] == pytest.approx(below, abs=0.01)
    assert cell["below_bound"] >= 0
    assert cell["attainment"][HINDSIGHT] == 100 * runs[HINDSIGHT].attainment
    # Each model has an instance of its own with hindsight, where it is awake from the start.
    assert runs[HINDSIGHT].swaps == 0
    assert runs[HINDSIGHT].attainment == 1.0
    assert "best rival" in out.with_suffix(".txt").read_text("utf-8")
