"""The summary of a run: what its figures are about."""

import json
from dataclasses import replace

import numpy as np
import pytest

from qlm.domain.slo import DeadlineSlo, OnMiss, ReadingSlo
from qlm.simulator.report import summary
from qlm.simulator.scenario import SloClass
from qlm.simulator.workload.stream import StreamCounts
from support.simulation import run, scenario, workload

HASTY = SloClass(name="hasty", slo=DeadlineSlo(deadline_ms=4000), on_miss=OnMiss.DROP)


def test_latencies_and_throughput_are_those_of_answered_requests() -> None:
    subject = scenario(workload(300, rate_rps=100.0, output_tokens=150.0, classes=1), instances=1)
    result = run(replace(subject, slo_classes=(HASTY,)))
    outcomes, arrival_ns = result.outcomes, result.workload.arrival_ns
    answered = np.isin(outcomes.outcome, ["stop", "length"])
    assert "expired" in outcomes.outcome
    assert 0 < answered.sum() < (outcomes.ended_ns >= 0).sum()
    summed = summary(result)
    took_s = (outcomes.ended_ns - arrival_ns)[answered] / 1e9
    assert summed["latency_by_class"]["hasty"]["completion_p90_s"] == pytest.approx(np.quantile(took_s, 0.9))
    span_s = (outcomes.ended_ns.max() - arrival_ns.min()) / 1e9
    assert summed["throughput_rps"] == pytest.approx(answered.sum() / span_s)


def test_readers_are_those_of_answered_requests() -> None:
    """A dropped one had an idle time of 0, so that dropping made readers wait less."""
    readers = SloClass(name="readers", slo=ReadingSlo(ttft_ms=1500, tokens_per_s=50), on_miss=OnMiss.DROP)
    subject = scenario(workload(100, rate_rps=100.0, output_tokens=150.0, classes=1), instances=1)
    result = run(replace(subject, slo_classes=(readers,)))
    outcomes = result.outcomes
    answered = np.isin(outcomes.outcome, ["stop", "length"])
    assert "expired" in outcomes.outcome and answered.any()
    for column in (outcomes.idle_s, outcomes.qoe):
        assert (~np.isnan(column)).tolist() == answered.tolist()
    reading = summary(result)["reading_by_class"]["readers"]
    assert reading["idle_mean_s"] == pytest.approx(outcomes.idle_s[answered].mean())
    assert reading["qoe_mean"] == pytest.approx(outcomes.qoe[answered].mean())


def test_what_streams_lost_is_in_the_summary() -> None:
    result = run(scenario(workload(5, rate_rps=10.0)))
    streams = json.loads(json.dumps(summary(result, [StreamCounts(name="a", requests=5, prompts_cut=2)])))[
        "streams"
    ]
    assert [(each["name"], each["requests"], each["prompts_cut"], each["left_out"]) for each in streams] == [
        ("a", 5, 2, 0)
    ]


def test_requests_of_the_warm_up_are_left_out_of_shares_and_latencies() -> None:
    subject = scenario(workload(300, rate_rps=100.0, output_tokens=150.0, classes=1), instances=1)
    subject = replace(subject, slo_classes=(HASTY,))
    whole, counted = run(subject), run(replace(subject, warm_up_s=1.5))
    late = counted.workload.arrival_ns >= 1_500_000_000
    assert 0 < late.sum() < 300
    summed = summary(counted)
    assert (summed["submitted"], summed["counted"]) == (300, late.sum())
    assert (counted.outcomes.met == whole.outcomes.met).all(), "the simulation itself is the same"
    assert summed["attainment"] == summed["attainment_by_class"]["hasty"] == counted.outcomes.met[late].mean()
    assert summed["attainment"] != summary(whole)["attainment"]
    assert summed["throughput_rps"] == summary(whole)["throughput_rps"]
    nothing = summary(run(replace(subject, warm_up_s=1e6)))
    assert (nothing["attainment"], nothing["attainment_by_class"]) == (None, {})
