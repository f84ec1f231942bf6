from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.iteration import Coefficients
from qlm.rct_estimator.profiles.profile import Profile
from qlm.simulator.engine.run import Run
from qlm.simulator.engine.step_time import FRACTION_BITS, StepTimes

NS = 1 << FRACTION_BITS
runs = st.builds(
    Run, st.integers(0, 10**24), st.integers(NS, 10**18), st.integers(0, 10**13), st.integers(1, 3000)
)


@given(runs, st.integers(1, 200))
def test_the_end_is_the_sum_of_the_iterations(run: Run, iterations: int) -> None:
    ticks = run.begin_ticks + sum(run.first_ticks + i * run.growth_ticks for i in range(iterations))
    assert run.end_ticks(iterations) == ticks
    assert run.end_ns(iterations) == ticks // NS


@given(runs, st.data())
def test_a_run_cut_anywhere_ends_when_the_whole_does(run: Run, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, run.iterations))
    rest = Run(
        run.end_ticks(cut), run.first_ticks + cut * run.growth_ticks, run.growth_ticks, run.iterations - cut
    )
    assert rest.end_ticks(rest.iterations) == run.end_ticks(run.iterations)


@given(runs, st.data())
def test_through_finds_the_first_iteration_that_ends_late_enough(run: Run, data: st.DataObject) -> None:
    at_ns = data.draw(st.integers(run.end_ns(0) - 5, run.end_ns(run.iterations) + 5))
    through = run.through(at_ns)
    assert 1 <= through <= run.iterations
    assert through == run.iterations or run.end_ns(through) >= at_ns
    assert through == 1 or run.end_ns(through - 1) < at_ns


def test_a_run_that_only_waits_has_nothing_to_cut() -> None:
    run = Run(7 * NS, 0, 0, 0)
    assert (run.through(3), run.end_ns(0)) == (0, 7)


@pytest.mark.parametrize("profile", builtin_profiles(), ids=lambda p: f"{p.model}-{p.accelerator}-{p.gpus}")
def test_whole_ticks_are_within_a_nanosecond_of_the_equations(profile: Profile) -> None:
    times = StepTimes(profile, profile.seqs_max)
    for batch in (1, 7, profile.seqs_max):
        context = profile.kv_tokens
        ticks = times.ticks(prefills=0, prefill_tokens=0, decodes=batch, context_tokens=context)
        assert abs(Fraction(ticks, NS) - exact_ns(profile.decode, batch, context)) < 1
        ticks = times.ticks(prefills=batch, prefill_tokens=8192, decodes=0, context_tokens=0)
        assert abs(Fraction(ticks, NS) - exact_ns(profile.prefill, batch, 8192)) < 1


def exact_ns(of: Coefficients, batch: int, tokens: int) -> Fraction:
    alpha, beta, gamma, delta = (
        Fraction(getattr(of, name)) * 10**6 for name in ("alpha", "beta", "gamma", "delta")
    )
    return alpha * tokens + beta * batch + gamma * Fraction(tokens, batch) + delta
