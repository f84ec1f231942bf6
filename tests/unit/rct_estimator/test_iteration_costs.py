"""Mean iterations: against draws of what they compute, and against the simulated engine."""

import math
from dataclasses import replace

import numpy as np
import pytest

from qlm.rct_estimator.iteration_costs import Load, load_of, mean_times
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import COEFFICIENTS, NUMBERS, Profile
from qlm.rct_estimator.throughput import steady_state
from qlm.rct_estimator.workload import Workload
from support.engine_burst import serve_burst

SHIPPED = find_profile(builtin_profiles(), "llama-3-8b", "H100")
BENT = IterationTime(
    host_ms=1.0,
    linear_ms=((1, 6.0), (128, 6.5), (320, 8.0), (512, 11.0), (2048, 44.0)),
    kv_ms=5.4e-5,
    kv_mixed_ms=8e-5,
    sequence_ms=0.008,
    square_ms=1.2e-6,
)
"""Reads weights up to about 320 tokens, then computes; prompts make reading the cache slower."""
PROFILE = replace(
    SHIPPED,
    iteration=BENT,
    async_scheduling=False,
    batched_tokens_max=2048,
    request_ms=0.0,
    sources={name: SHIPPED.sources["kv_tokens"] for name in (*COEFFICIENTS, *NUMBERS)},
)
CONTEXT = 700.0


def drawn(load: Load, chunks: int | None = None) -> float:
    """Return the mean time of drawn iterations, seconds; with `chunks`, of those with so many or more."""
    rng, of = np.random.default_rng(2), BENT
    log_var = math.log1p(load.chunk_var / load.chunk_tokens**2)
    counts = rng.poisson(load.chunks, 20_000) + (chunks or 0)
    total_ms = 0.0
    for count in counts:
        prompts = rng.lognormal(math.log(load.chunk_tokens) - log_var / 2, math.sqrt(log_var), count)
        total_ms += of.ms(
            tokens=load.decodes + float(prompts.sum()),
            context_tokens=load.decodes * CONTEXT,
            sequences=load.decodes + count,
            pairs=count * load.chunk_pairs,
            mixed=count > 0,
        )
    return total_ms / len(counts) / 1000


@pytest.mark.parametrize("chunks", [0.05, 0.7, 3.0])
@pytest.mark.parametrize(("tokens", "cv2"), [(150.0, 1.0), (150.0, 0.0), (600.0, 0.5), (1500.0, 0.1)])
def test_the_mean_iteration_is_that_of_drawn_ones(chunks: float, tokens: float, cv2: float) -> None:
    load = Load(
        decodes=64.0,
        chunks=chunks,
        chunk_tokens=tokens,
        chunk_var=cv2 * tokens**2,
        chunk_pairs=tokens**2 * (1 + cv2) / 2,
        backlog=0.0,
    )
    times = mean_times(BENT, load, CONTEXT)
    assert times.mean_s == pytest.approx(drawn(load), rel=0.015)
    assert times.own_s == pytest.approx(drawn(load, 1), rel=0.015)


def test_prompts_that_queue_for_the_budget_fill_every_iteration() -> None:
    work = Workload(prompt_tokens=1000.0, output=Normal(10.0), prompt_var=1e6)
    decodes = 18.0
    load = load_of(PROFILE, work, ends=(2048 - decodes) / 1000, chunks=1.0, decodes=decodes)
    times = mean_times(BENT, load, CONTEXT)
    full_ms = BENT.ms(
        tokens=2048,
        context_tokens=decodes * CONTEXT,
        sequences=decodes + load.chunks,
        pairs=load.chunks * load.chunk_pairs,
        mixed=True,
    )
    assert times.mean_s == pytest.approx(full_ms / 1000)
    assert times.own_s == pytest.approx(times.mean_s)


def test_an_iteration_without_prompts_is_a_decode() -> None:
    load = Load(decodes=5.0, chunks=0.0, chunk_tokens=1.0, chunk_var=0.0, chunk_pairs=0.0, backlog=0.0)
    times = mean_times(BENT, load, CONTEXT)
    assert times.mean_s == times.decode_s == PROFILE.decode_ms(5, CONTEXT) / 1000


def request_s(profile: Profile, prompts: FloatArray, outputs: FloatArray, batch: float) -> float:
    """Serve a burst on the simulated engine; return the time between two ends while the batch is full."""
    burst = serve_burst(profile, prompts, outputs)
    ends_s = [at_s for emission, at_s in burst if emission.finish is not None]
    first, last = int(3 * batch), len(ends_s) - int(batch) - 1
    return (ends_s[last] - ends_s[first]) / (last - first)


@pytest.mark.parametrize("scheduled_early", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("prompt", "prompt_log_sd", "output", "slots"),
    [
        (600, 1.0, 150, 128),
        (100, 1.0, 60, 256),
        (3000, 0.8, 200, 64),
        (600, 0.0, 150, 64),
        (1000, 1.0, 20, 64),
    ],
    ids=["chat", "short prompts", "budget", "alike", "short answers"],
)
def test_the_steady_state_is_that_of_the_simulated_engine(
    prompt: float, prompt_log_sd: float, output: float, slots: int, scheduled_early: bool
) -> None:
    profile = replace(PROFILE, seqs_max=slots, async_scheduling=scheduled_early)
    assert pace_ratio(profile, prompt, prompt_log_sd, output) == pytest.approx(1.0, abs=0.025)


@pytest.mark.parametrize("prompt", [100, 3000], ids=["one chunk", "some chunks"])
def test_the_time_per_request_counts_once_for_each(prompt: float) -> None:
    profile = replace(PROFILE, seqs_max=64, iteration=replace(BENT, admission_ms=6.0))
    assert pace_ratio(profile, prompt, 0.5, 60) == pytest.approx(1.0, abs=0.025)
    without = steady_state(replace(profile, iteration=BENT), SOME).request_s
    assert steady_state(profile, SOME).request_s == pytest.approx(without + 0.006, rel=0.01)


def test_the_time_per_request_delays_its_own_first_token() -> None:
    slow = replace(PROFILE, iteration=replace(BENT, admission_ms=6.0))
    states = [steady_state(profile, SOME, batch=8) for profile in (PROFILE, slow)]
    assert states[1].own_prefill_s - states[0].own_prefill_s > 0.006


SOME = Workload(prompt_tokens=100.0, output=Normal(60.0, 900.0), prompt_var=2500.0)


def pace_ratio(profile: Profile, prompt: float, prompt_log_sd: float, output: float) -> float:
    """Return the estimated over the simulated time between two ends, the mean of four bursts."""
    slots = profile.seqs_max
    rng = np.random.default_rng(8)
    ratios = []
    for _ in range(4):
        n = 12 * max(slots, 128)
        logs = math.log(prompt) - prompt_log_sd**2 / 2, math.log(output) - 0.32
        prompts = rng.lognormal(logs[0], prompt_log_sd, n).round().clip(1, 7000)
        outputs = rng.lognormal(logs[1], 0.8, n).round().clip(1, 1000)
        work = Workload(
            prompt_tokens=float(prompts.mean()),
            output=Normal(float(outputs.mean()), float(outputs.var())),
            prompt_var=float(prompts.var()),
        )
        state = steady_state(profile, work)
        ratios.append(state.request_s / request_s(profile, prompts, outputs, state.batch))
    return float(np.mean(ratios))
