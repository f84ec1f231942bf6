"""Prompts of which the prefix cache holds a share: they occupy KV cache, and only the rest is computed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ServedWork
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.served_work import served_work_s
from qlm.rct_estimator.throughput import full_batch, steady_state
from qlm.rct_estimator.workload import Workload, mixture

A10 = find_profile(builtin_profiles(), "mistral-7b", "A10")
LONG = Workload(prompt_tokens=4000.0, prompt_var=1000.0**2, output=Normal(200.0, 100.0**2))


def test_a_cached_prompt_occupies_as_much_and_takes_less_time() -> None:
    shares = [replace(LONG, cached_share=share) for share in (0.0, 0.3, 0.6, 0.9)]
    assert len({full_batch(A10, each) for each in shares}) == 1
    states = [steady_state(A10, each) for each in shares]
    for name in ("request_s", "prompt_s", "own_prefill_s", "iteration_s"):
        values = [getattr(each, name) for each in states]
        assert values == sorted(values, reverse=True), name
    assert states[-1].prompt_s < 0.2 * states[0].prompt_s


@pytest.mark.parametrize("batch", [1.0, 8.0])
def test_it_takes_what_its_computed_tokens_take_at_their_position(batch: float) -> None:
    """A quarter of 4 000 tokens: a prompt of 1 000, whose tokens compare with 3 000 more each."""
    cached = replace(LONG, prompt_var=0.0, cached_share=0.75)
    short = replace(cached, prompt_tokens=1000.0, cached_share=0.0, prompt_bias=4.0)
    compared_s = A10.iteration.square_ms * 1000 * 3000 / 1000
    alike, ours = (steady_state(A10, each, batch=batch) for each in (short, cached))
    assert ours.workload.context_tokens == pytest.approx(alike.workload.context_tokens)
    assert ours.prompt_s == pytest.approx(alike.prompt_s + compared_s, rel=0.05)


def test_a_mixture_computes_what_its_parts_compute() -> None:
    parts = [(3.0, replace(LONG, cached_share=0.8)), (1.0, replace(LONG, prompt_tokens=1000.0))]
    computed = sum(n * each.computed_share * each.prompt_tokens for n, each in parts) / 4
    mixed = mixture(parts)
    assert mixed.computed_share * mixed.prompt_tokens == pytest.approx(computed)


@given(st.lists(st.tuples(st.floats(0.01, 9), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8))
def test_any_mixture_is_a_workload(parts: list[tuple[float, float, float]]) -> None:
    works = [(n, replace(LONG, cached_share=min(a, b), hit_share=max(a, b))) for n, a, b in parts]
    mixed = mixture(works)
    low, high = min(w.cached_share for _, w in works), max(w.cached_share for _, w in works)
    assert low - 1e-9 <= mixed.cached_share <= high + 1e-9
    whole = mixture([(n, LONG) for n, _, _ in parts])
    assert not whole.cached_share
    assert whole.hit_share == pytest.approx(1.0)


def test_an_engine_is_not_taken_for_a_fast_one_because_of_its_cache() -> None:
    work = ServedWork(busy_s=20.0, request_s=80.0, prompt_tokens=160_000, output_tokens=4000, ended=40)
    whole = served_work_s(A10, work, started=40)
    cached = served_work_s(A10, replace(work, cached_tokens=120_000), started=40)
    state = steady_state(A10, replace(LONG, prompt_var=0.0, output=Normal(100.0)), batch=4.0)
    assert whole - cached == pytest.approx(40 * 0.75 * state.prompt_s, rel=0.2)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(InvalidValueError, match="cached_share"):
        replace(LONG, cached_share=share)


@pytest.mark.parametrize("hits", [0.4, 0.7, 1.0])
def test_the_moments_of_the_computed_tokens_are_those_of_hits_and_misses(hits: float) -> None:
    share = 0.4
    work = replace(LONG, cached_share=share, hit_share=hits)
    random = np.random.default_rng(1)
    spread = np.sqrt(np.log1p(LONG.prompt_cv2))
    prompts = LONG.prompt_tokens * random.lognormal(-(spread**2) / 2, spread, 400_000)
    cached = np.where(random.random(len(prompts)) < hits, share / hits, 0.0) * prompts
    assert work.computed_share * work.prompt_tokens == pytest.approx((prompts - cached).mean(), rel=0.01)
    assert work.computed_var == pytest.approx((prompts - cached).var(), rel=0.02)
    assert work.prompt_pairs == pytest.approx((prompts**2 - cached**2).mean() / 2, rel=0.02)
