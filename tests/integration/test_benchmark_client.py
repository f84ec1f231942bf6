"""The client of the fidelity benchmark against an emulated engine: does it see every token, once?"""

from importlib.resources import files
from pathlib import Path

import pytest

from benchmarks.fidelity_compare import compare
from benchmarks.fidelity_run import run
from benchmarks.fidelity_servers import emulated_engine
from benchmarks.fidelity_workload import Planned, plan

PROFILE = Path(str(files("qlm.rct_estimator") / "profiles/shipped/llama-3-8b-a100.yaml"))
TIMER_S = 0.002
"""Timers of the event loop have a resolution of a millisecond, and may ring early by it."""


def test_each_token_of_each_answer_is_seen_in_order_after_its_request_was_due() -> None:
    planned = [Planned(one.at_s, one.prompt_tokens, min(one.output_tokens, 40)) for one in plan(40, 50.0, 1)]
    with emulated_engine(PROFILE) as engine:
        first, second = (run(engine, planned, name) for name in ("first", "second"))
    for done in (first, second):
        assert [len(answer.token_s) for answer in done.answers] == [one.output_tokens for one in planned]
        for answer, one in zip(done.answers, planned, strict=True):
            assert answer.due_s == one.at_s
            assert one.at_s - TIMER_S < answer.sent_s < answer.token_s[0]
            assert list(answer.token_s) == sorted(answer.token_s)
        assert done.cores.engine > 0
        assert done.cores.client > 0
        assert done.cores.others >= 0
    load = compare([first.answers, second.answers], first.answers, places=16)
    assert load.model[0].each == pytest.approx(0)
