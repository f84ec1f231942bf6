"""The mapping in `extra_args`: what is written is read, and what is malformed is named."""

import json
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.agents.batching.sent_objective import (
    NO_OBJECTIVE,
    Objective,
    objective_of,
    received_objective,
    sent_objective,
)
from qlm.agents.batching.view import FIRST_TOKEN_ONLY
from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.engine import CallObjective

_seconds = st.floats(0, 1e6)
objectives = st.builds(
    Objective,
    age_s=_seconds,
    ttft_s=_seconds,
    rate=st.just(inf) | st.just(FIRST_TOKEN_ONLY) | st.floats(0.01, 1000),
    left_s=st.just(inf) | st.floats(-1e6, 1e6),
    shown=st.integers(0, 99),
    late_s=_seconds,
    rank=st.integers(0, 2**62),
    pinned=st.booleans(),
)


@given(objectives)
def test_an_objective_survives_json(objective: Objective) -> None:
    sent = json.loads(json.dumps(objective.extra_args(), allow_nan=False))
    assert objective_of(sent, prompt_tokens=100) == objective


@given(objectives, st.integers(0, 10**15))
def test_an_objective_arrives_with_the_times_of_the_engines_clock(objective: Objective, now_ns: int) -> None:
    objective = objective._replace(pinned=False)  # engines get that with the sampling
    received = sent_objective(received_objective(objective, now_ns), now_ns)
    assert received == pytest.approx(objective, abs=1e-6)


def test_a_clock_that_runs_ten_times_slower_sees_a_tenth_of_the_time() -> None:
    real = Objective(age_s=1.0, ttft_s=2.0, rate=5.0, left_s=4.0, late_s=0.5)
    received = received_objective(real, 10**9, time_scale=10.0)
    assert received == CallObjective(
        arrival_ns=900_000_000, ttft_s=0.2, tokens_per_s=50.0, deadline_ns=1_400_000_000, late_s=0.05
    )


def test_defaults_are_left_out() -> None:
    assert NO_OBJECTIVE.extra_args() == {"qlm": {"version": 1}}


@pytest.mark.parametrize("extra_args", [None, {}, {"another": {"rate": 5}}])
def test_a_request_of_others_has_no_objective(extra_args: dict[str, Any] | None) -> None:
    assert objective_of(extra_args, prompt_tokens=5) == NO_OBJECTIVE


def test_keys_of_a_later_sender_are_ignored() -> None:
    assert objective_of({"qlm": {"version": 1, "rank": 3, "mood": "calm"}}, prompt_tokens=5).rank == 3


@pytest.mark.parametrize(
    ("plain", "field"),
    [
        ([1], "extra_args.qlm"),
        ({}, "extra_args.qlm.version"),
        ({"version": 2}, "extra_args.qlm.version"),
        ({"version": 1, "rate": "fast", "ttft_s": 1}, "extra_args.qlm.rate"),
        ({"version": 1, "rate": -1, "ttft_s": 1}, "extra_args.qlm.rate"),
        ({"version": 1, "rate": 5}, "extra_args.qlm.ttft_s"),
        ({"version": 1, "age_s": nan}, "extra_args.qlm.age_s"),
        ({"version": 1, "left_s": inf}, "extra_args.qlm.left_s"),
        ({"version": 1, "late_s": True}, "extra_args.qlm.late_s"),
        ({"version": 1, "left_s": 1e300}, "extra_args.qlm.left_s"),
        ({"version": 1, "age_s": 10**400}, "extra_args.qlm.age_s"),
        ({"version": 1, "rate": 5e-324, "ttft_s": 1}, "extra_args.qlm.rate"),
        ({"version": 1, "rank": 1.5}, "extra_args.qlm.rank"),
        ({"version": 1, "rank": 2**63}, "extra_args.qlm.rank"),
        ({"version": 1, "shown": 10}, "extra_args.qlm.shown"),
        ({"version": 1, "pinned": 1}, "extra_args.qlm.pinned"),
    ],
)
def test_a_malformed_mapping_is_refused_by_its_field(plain: object, field: str) -> None:
    with pytest.raises(InvalidValueError) as raised:
        objective_of({"qlm": plain}, prompt_tokens=10)
    assert raised.value.field == field
