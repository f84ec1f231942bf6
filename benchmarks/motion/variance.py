"""Compare the planner's variance of a wait with the estimator's: `python -m benchmarks.motion.variance`.

Errors of a class's mean length and of an instance's speed are common to all groups, so they do not average
out over the groups of a queue. The planner adds variances of groups as if they were independent.
"""

import math
import random
import sys

from qlm.domain.length_histogram import LENGTH_BINS, LengthHistogram, length_bin
from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.output_length import posterior, typical_prior
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.throughput import SteadyState, steady_state
from qlm.rct_estimator.waiting_time import QueuePart, waiting_time
from qlm.rct_estimator.workload import class_workload

PROMPT_TOKENS = 300.0
MAX_TOKENS = 1024.0
SPEED_SD_KNOWN = 0.025
"""Relative uncertainty of an instance's speed after many answers."""


def histogram(answers: int, rng: random.Random) -> LengthHistogram:
    """Draw answer lengths: lognormal, median 148 tokens, sigma 0.8."""
    counts, tokens = [0] * LENGTH_BINS, [0] * LENGTH_BINS
    for _ in range(answers):
        length = max(1, round(rng.lognormvariate(5, 0.8)))
        counts[length_bin(length)] += 1
        tokens[length_bin(length)] += length
    return LengthHistogram(tuple(counts), tuple(tokens))


def state_after(answers: int, rng: random.Random) -> SteadyState:
    """Estimate one A100 with a 7B model after so many answers."""
    lengths = posterior(histogram(answers, rng), typical_prior(None)).predictive()
    workload = class_workload(lengths, PROMPT_TOKENS, MAX_TOKENS, prompt_var=PROMPT_TOKENS**2, max_var=0.0)
    profile = find_profile(builtin_profiles(), "mistral-7b", "A100", 1)
    correction = Correction() if answers < 100 else Correction(log_var=SPEED_SD_KNOWN**2)
    return steady_state(profile, workload).corrected(correction)


def planner_variance(state: SteadyState, requests: int, groups: int) -> float:
    """Variance of the service time of equal groups as planning problems have it: summed over groups.

    The variance of one group is that of `controller.core.estimating.planning_times.PlanningForm`.
    """
    decode_s = state.request_s - state.prompt_s
    own = decode_s**2 * state.work_cv2 + state.prompt_s**2 * state.prompt_cv2
    common = (decode_s * state.work_uncertainty) ** 2 + (state.uncertainty * state.request_s) ** 2
    return groups * (requests * own + requests**2 * common)


def main() -> int:
    """Print both standard deviations for 1 to 16 groups, after few and after many answers."""
    rng = random.Random(1)
    for answers in (20, 1000):
        state = state_after(answers, rng)
        requests = round(4 * state.batch)
        for groups in (1, 4, 16):
            parts = [QueuePart(state=state, requests=requests, cls="c") for _ in range(groups)]
            planner_sd_s = math.sqrt(planner_variance(state, requests, groups))
            estimator_sd_s = math.sqrt(waiting_time(parts).var)
            print(
                f"{answers:5} answers seen, {groups:2} groups of {requests}: "
                f"mean wait {groups * requests * state.request_s:7.1f} s, "
                f"sd {planner_sd_s:6.1f} s by the planner, {estimator_sd_s:6.1f} s by the estimator"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
