"""Schedules: drawn beforehand, equal for equal seeds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qlm.cli.bench.schedule import Load, plan, prompt_tokens, read_load_trace
from qlm.domain.errors import QlmError
from qlm.simulator.workload.trace_format import TraceFormat

LOAD = Load(request_rate=20.0, num_prompts=4000, random_range_ratio=0.5)
INF = float("inf")


def gaps(load: Load, seed: int = 1) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.diff([each.at_s for each in plan(load, seed)])


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_burstiness_of_vllm(burstiness: float) -> None:
    found = gaps(replace(LOAD, burstiness=burstiness))
    assert found.mean() == pytest.approx(1 / 20, rel=0.1)
    assert found.std() / found.mean() == pytest.approx(burstiness**-0.5, rel=0.1)


def test_infinite_rate_and_burstiness_are_all_at_once_and_a_fixed_pace() -> None:
    assert set(gaps(replace(LOAD, request_rate=INF))) == {0.0}
    assert gaps(replace(LOAD, burstiness=INF)) == pytest.approx(1 / 20)


def test_a_seed_gives_one_schedule_and_its_lengths_at_every_rate() -> None:
    assert plan(LOAD, 3) == plan(LOAD, 3) != plan(LOAD, 4)
    faster = plan(replace(LOAD, request_rate=40.0), 3)
    assert [each[1:] for each in faster] == [each[1:] for each in plan(LOAD, 3)]
    assert plan(LOAD, 3)[0].at_s == 0


def test_lengths_vary_within_their_range() -> None:
    lengths = [each.output_tokens for each in plan(LOAD, 1)]
    assert (min(lengths), max(lengths)) == (64, 192)
    assert {each.prompt_tokens for each in plan(replace(LOAD, random_range_ratio=0.0), 1)} == {1024}


def test_a_trace_gives_lengths_and_times_unless_there_is_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n5.5,10,2\n6,20,3\n8,30,4\n", "utf-8")
    load = Load(request_rate=None, trace=read_load_trace(path, TraceFormat.CSV))
    assert plan(load, 0) == ((0.0, 10, 2), (0.5, 20, 3), (2.5, 30, 4))
    assert plan(replace(load, num_prompts=2), 0) == ((0.0, 10, 2), (0.5, 20, 3))
    assert [each.at_s for each in plan(replace(load, request_rate=INF), 0)] == [0, 0, 0]


def test_neither_rate_nor_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n10,2\n", "utf-8")
    for trace in (None, read_load_trace(path, TraceFormat.LENGTHS)):
        with pytest.raises(QlmError, match="--request-rate is missing; expected a rate, inf"):
            plan(Load(request_rate=None, trace=trace), 0)


def test_prompts_have_the_planned_length_and_ordinary_tokens() -> None:
    prompts = prompt_tokens(plan(LOAD, 1)[:50], np.random.default_rng(1))
    assert [len(each) for each in prompts] == [each.prompt_tokens for each in plan(LOAD, 1)[:50]]
    assert all(10 <= token < 200 for prompt in prompts for token in prompt)
