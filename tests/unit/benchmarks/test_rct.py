"""The benchmark of forecasts: what it simulates, and the bound that it prints beside R²."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import rct
from benchmarks.rct_figures import judged
from benchmarks.rct_points import (
    MAX_TOKENS,
    SKIPPED,
    WARM_UP,
    Point,
    bursts,
    capacity_rps,
    fitted,
    open_loops,
    scenario,
)
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.simulator.seeds import Seeds
from qlm.simulator.workload.trace import Trace

PROFILE = find_profile(builtin_profiles(), "mistral-7b", "A10")


def trace(median: float, seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    prompt, output = (np.ceil(rng.lognormal(np.log(m), 0.7, 3000)).astype(np.int64) for m in (600, median))
    return Trace(path=Path("drawn"), prompt_tokens=prompt, output_tokens=output)


TRACES = {"azure": trace(100, 1), "arxiv": trace(60, 2)}


def test_a_burst_comes_at_once_after_a_warm_up_and_an_idle_time() -> None:
    (point,) = bursts([PROFILE], ["azure"])
    drawn = scenario(point, TRACES).make_workload(Seeds(1))
    gaps_s = np.diff(drawn.arrival_ns) / 1e9
    assert len(drawn) == WARM_UP + point.requests
    assert np.all(gaps_s[WARM_UP:] == 0)
    assert gaps_s[WARM_UP - 1] > 120
    assert set(drawn.output_tokens) <= set(fitted(TRACES["azure"], 8192)[1])
    assert drawn.output_tokens.max() <= MAX_TOKENS


@pytest.mark.parametrize("load", [0.6, 1.2])
def test_an_open_loop_offers_its_load_in_two_classes(load: float) -> None:
    (point,) = open_loops([PROFILE], [load], ["fcfs"], 4000)
    drawn = scenario(point, TRACES).make_workload(Seeds(1))
    offered_rps = len(drawn) / (drawn.arrival_ns[-1] / 1e9)
    lengths = [fitted(each, 8192) for each in TRACES.values()]
    assert offered_rps == pytest.approx(load * capacity_rps(PROFILE, lengths), rel=0.05)
    assert np.mean(drawn.slo_class) == pytest.approx(0.5, abs=0.05)
    assert point.warm_up == SKIPPED
    assert len(drawn) == SKIPPED + 4000 == SKIPPED + point.requests + point.followed
    chat, report = (drawn.output_tokens[drawn.slo_class == cls].mean() for cls in (0, 1))
    assert chat > 1.4 * report


def test_a_run_tells_what_nobody_could_know() -> None:
    few = replace(PROFILE, seqs_max=8)
    point = Point(profile=few, traces=("azure",), load=None, policy="fcfs", requests=200, every=2)
    run = judged(point, TRACES, seed=3)
    rows = {row.time: row for row in run.rows}
    assert set(rows) == {"wait", "first_token", "completion", "group"}
    assert 0.9 < rows["completion"].ceiling < rows["wait"].ceiling < 1
    assert rows["wait"].accuracy.count == pytest.approx(96, abs=2)
    assert rows["wait"].accuracy.r2 > 0.9
    assert run.measured_rps == pytest.approx(run.predicted_rps, rel=0.15)


def test_requests_that_only_follow_are_not_judged() -> None:
    many = replace(PROFILE, kv_tokens=10 * PROFILE.kv_tokens)
    point = Point(
        profile=many, traces=("azure", "arxiv"), load=0.3, policy="edf", requests=60, every=1, followed=40
    )
    run = judged(point, TRACES, seed=3)
    classes = {row.slo_class: row.accuracy.count for row in run.rows if row.time == "completion"}
    assert classes.keys() == {"chat", "report"}
    assert sum(classes.values()) == 60


def test_a_missing_folder_of_traces_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QLM_TRACES", str(tmp_path))
    with pytest.raises(SystemExit):
        rct.main(["--quick"])
    shown = capsys.readouterr().err
    assert f"QLM_TRACES is {str(tmp_path)!r}" in shown
    assert "sharegpt_8k/lengths.csv" in shown
