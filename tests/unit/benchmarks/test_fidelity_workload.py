import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fidelity_workload import ANSWERS, PROMPTS, calls, plan


@given(st.integers(0, 10**6), st.floats(0.1, 100))
def test_at_another_rate_the_same_requests_come_at_other_times(seed: int, rate_rps: float) -> None:
    base, other = plan(50, 1.0, seed), plan(50, rate_rps, seed)
    assert [(one.prompt_tokens, one.output_tokens) for one in base] == [
        (one.prompt_tokens, one.output_tokens) for one in other
    ]
    assert [one.at_s / rate_rps for one in base] == pytest.approx([one.at_s for one in other])


def test_at_an_infinite_rate_all_come_at_once() -> None:
    assert {one.at_s for one in plan(50, float("inf"), 1)} == {0.0}


def test_lengths_have_the_mean_that_is_said_and_keep_to_their_caps() -> None:
    planned = plan(20_000, 1.0, 1)
    for lengths, tokens in (
        (PROMPTS, [one.prompt_tokens for one in planned]),
        (ANSWERS, [one.output_tokens for one in planned]),
    ):
        assert min(tokens) >= 1
        assert max(tokens) == lengths.tokens_max
        # The cap takes some of the mean away.
        assert sum(tokens) / len(tokens) == pytest.approx(lengths.mean_tokens, rel=0.05)


def test_no_two_prompts_of_two_runs_begin_alike_and_all_else_is_equal() -> None:
    planned = [one for one in plan(200, 10.0, 1) if one.prompt_tokens >= 8]
    first, second = ([json.loads(call.body) for call in calls(planned, "m", run)] for run in ("a", "b"))
    beginnings = {tuple(body["token_ids"][:8]) for body in first + second}
    assert len(beginnings) == 2 * len(planned)
    assert [len(body["token_ids"]) for body in first] == [one.prompt_tokens for one in planned]
    assert [body["sampling_params"] for body in first] == [body["sampling_params"] for body in second]
    assert [body["sampling_params"]["max_tokens"] for body in first] == [one.output_tokens for one in planned]
