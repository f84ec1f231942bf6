"""An engine whose iterations always take the same, and what a burst on it looks like to a client."""

import heapq
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.fidelity_client import Answer
from benchmarks.fidelity_workload import Planned
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.iteration import IterationTime
from qlm.rct_estimator.profiles.profile import Profile

PLACES = 16
PACE_S = 0.02


def constant_pace() -> Profile:
    """Iterations that take PACE_S whatever they compute, for PLACES requests at once."""
    profile = find_profile(builtin_profiles(), "llama-3-8b", "A100")
    return replace(profile, iteration=IterationTime.constant(1000 * PACE_S), request_ms=0.0, seqs_max=PLACES)


def answer(first_s: float, tokens: int) -> Answer:
    """An answer to a request sent at 0."""
    return Answer(0.0, 0.0, tuple(first_s + PACE_S * k for k in range(tokens)))


def served(planned: Sequence[Planned]) -> list[Answer]:
    """Serve a burst: prompts cost nothing, each place gives a token every PACE_S."""
    free_s = [0.0] * PLACES
    answers = []
    for one in planned:
        begun_s = heapq.heappop(free_s)
        heapq.heappush(free_s, begun_s + PACE_S * one.output_tokens)
        answers.append(answer(begun_s + PACE_S, one.output_tokens))
    return answers
