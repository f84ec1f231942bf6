from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fidelity_client import Answer
from benchmarks.fidelity_compare import Load, compare, judge, steady_part, steady_tokens_per_s
from benchmarks.fidelity_workload import Planned, plan

PLACES = 4


def served(planned: list[Planned], *, places: int = PLACES, pace_s: float = 0.01) -> list[Answer]:
    """Answer as an engine that gives each running request a token every `pace_s`; prompts take no time."""
    free_s = [0.0] * places
    answers = []
    for one in planned:
        place = free_s.index(min(free_s))
        begun_s = max(one.at_s, free_s[place])
        tokens = tuple(begun_s + pace_s * (k + 1) for k in range(one.output_tokens))
        free_s[place] = tokens[-1]
        answers.append(Answer(one.at_s, one.at_s, tokens))
    return answers


def stretched(answers: list[Answer], factor: float) -> list[Answer]:
    def later(answer: Answer, s: float) -> float:
        return answer.due_s + factor * (s - answer.due_s)

    return [replace(a, token_s=tuple(later(a, s) for s in a.token_s)) for a in answers]


@given(st.integers(0, 1000), st.integers(1, 16))
def test_the_steady_part_is_that_of_a_full_batch(seed: int, places: int) -> None:
    burst = served(plan(120, float("inf"), seed), places=places)
    part = steady_part(burst, places)
    assert part is not None
    # All places are taken until fewer requests are left than places.
    ends = sorted(answer.token_s[-1] for answer in burst)
    assert part[0] == pytest.approx(0.0)
    assert part[1] == pytest.approx(ends[-places - 1])
    assert steady_tokens_per_s(burst, places) == pytest.approx(places / 0.01, rel=0.05)


def test_a_run_below_capacity_has_no_steady_part() -> None:
    apart = [Planned(float(number), 10, 20) for number in range(40)]
    assert steady_part(served(apart), PLACES) is None
    assert steady_tokens_per_s(served(apart), PLACES) is None


def test_equal_runs_do_not_differ() -> None:
    run = served(plan(100, 20.0, 3))
    load = compare([run, run], run, places=PLACES)
    (own,) = load.own
    assert load.model == (own, own)
    assert (own.each, own.bias, own.p95, own.throughput) == (0, 0, 0, 0)


@given(st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_a_run_that_takes_longer_by_a_factor_differs_by_it(factor: float, again: float) -> None:
    run = served(plan(100, 20.0, 3))
    load = compare([run, stretched(run, again)], stretched(run, factor), places=PLACES)
    (first, second), (own,) = load.model, load.own
    assert first.each == pytest.approx(abs(factor - 1), abs=1e-9)
    assert first.bias == pytest.approx(factor - 1, abs=1e-9)
    assert first.first_token_bias == pytest.approx(factor - 1, abs=1e-9)
    assert first.pace_bias == pytest.approx(factor - 1, abs=1e-9)
    assert first.p95 == pytest.approx(factor - 1, abs=1e-9)
    assert second.bias == pytest.approx(factor / again - 1, abs=1e-9)
    assert own.each == pytest.approx(abs(again - 1), abs=1e-9)
    assert own.p95 == pytest.approx(again - 1, abs=1e-9)
    assert own.first_token_bias == pytest.approx(again - 1, abs=1e-9)


def test_every_pair_of_real_runs_tells_the_engines_own_error() -> None:
    run = served(plan(100, 20.0, 3))
    load = compare([run, stretched(run, 1.1), stretched(run, 1.21)], run, places=PLACES)
    assert [one.bias for one in load.own] == pytest.approx([0.1, 0.21, 0.1])
    assert [one.bias for one in load.model] == pytest.approx([0.0, 1 / 1.1 - 1, 1 / 1.21 - 1])


def test_throughput_differs_by_the_pace() -> None:
    planned = plan(100, float("inf"), 5)
    load = compare([served(planned)] * 2, served(planned, pace_s=0.0125), places=PLACES)
    assert load.model[0].throughput == pytest.approx(-0.2, abs=0.01)


def test_the_median_of_all_comparisons_of_all_rounds_is_judged_against_the_real_engines_own_error() -> None:
    run = served(plan(100, 20.0, 3))

    def a_round(emulated: float, again: float) -> Load:
        return compare([run, stretched(run, again)], stretched(run, emulated), places=PLACES)

    rounds = [a_round(1.12, 1.10), a_round(1.14, 1.10), a_round(3.0, 1.0)]
    latency, p95 = judge("x", rounds, saturated=False)
    assert [latency.value, latency.bound] == pytest.approx([0.13, 0.15])  # of 0.02, 0.04, 0.12, 0.14, 2, 2
    assert p95.value == pytest.approx(0.13)
    assert latency.own == pytest.approx(0.10)
    assert latency.passed and p95.passed
    quiet = judge("x", [a_round(1.12, 1.0)], saturated=False)[0]
    assert quiet.bound == pytest.approx(0.10)
    assert not quiet.passed


def test_a_saturated_load_that_never_filled_the_batch_is_not_held() -> None:
    apart = served([Planned(float(number), 10, 20) for number in range(40)])
    *_others, pace = judge("x", [compare([apart, apart], apart, places=PLACES)], saturated=True)
    assert not pace.passed
