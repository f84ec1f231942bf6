"""Compare the planner's uncertainty of a wait with the estimator's: `python -m benchmarks.motion.variance`.

Errors of a class's mean length and of an instance's speed are common to all groups, so they do not average
out over the groups of a queue. The third column is what the planner would have if they did.
"""

import math
import random
import sys
from typing import Final

from qlm.controller.core.estimating.classes import class_posterior
from qlm.controller.core.estimating.planning_times import PlanningForm, form_of
from qlm.controller.core.estimating.service_times import class_entry
from qlm.domain.group import RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.length_histogram import LENGTH_BINS, LengthHistogram, length_bin
from qlm.domain.view import ClassView
from qlm.planner.problem import Instance, Kind, ModelCost, Plan, PlannedGroup, Problem
from qlm.planner.verify.referee import verify
from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.waiting_time import QueuePart, waiting_time

MODEL: Final = ModelId("mistral-7b")
CLASS: Final = RequestClass(model=MODEL, slo="deadline-60s", target_ms=60_000.0)
PROMPT_TOKENS: Final = 300.0
MAX_TOKENS: Final = 1024.0
SPEED_SD_KNOWN: Final = 0.025
"""Relative uncertainty of an instance's speed after many answers."""


def histogram(answers: int, rng: random.Random) -> LengthHistogram:
    """Draw answer lengths: lognormal, median 148 tokens, sigma 0.8."""
    counts, tokens = [0] * LENGTH_BINS, [0] * LENGTH_BINS
    for _ in range(answers):
        length = max(1, round(rng.lognormvariate(5, 0.8)))
        counts[length_bin(length)] += 1
        tokens[length_bin(length)] += length
    return LengthHistogram(tuple(counts), tuple(tokens))


def form_after(answers: int, rng: random.Random) -> PlanningForm:
    """Estimate one A100 with a 7B model after so many answers, as a controller does."""
    view = ClassView(
        cls=CLASS,
        queued=0,
        groups=(),
        mean_prompt_tokens=PROMPT_TOKENS,
        var_prompt_tokens=PROMPT_TOKENS**2,
        mean_max_tokens=MAX_TOKENS,
        lengths=histogram(answers, rng),
    )
    profile = find_profile(builtin_profiles(), MODEL, "A100", 1)
    correction = Correction() if answers < 100 else Correction(log_var=SPEED_SD_KNOWN**2)
    return form_of(CLASS, class_entry(CLASS, class_posterior(view), profile), correction)


def planner_wait(form: PlanningForm, requests: int, groups: int) -> Normal:
    """Return the wait behind equal groups in a plan, by the referee."""
    time = {"A100": form.time(requests)}
    names = [GroupId(f"g{at:03d}") for at in range(groups + 1)]
    cost = ModelCost(weights_bytes=1, swap_warm_s=1.0, swap_cold_s=1.0)
    problem = Problem(
        now_s=0.0,
        kinds={"A100": Kind(host_memory_bytes=0, models={MODEL: cost})},
        instances=(Instance(id=InstanceId("a100"), kind="A100", loaded_model=MODEL),),
        groups=tuple(
            PlannedGroup(id=id, model=MODEL, requests=requests, deadline_s=None, time=time, cls=CLASS.queue)
            for id in names
        ),
    )
    return verify(problem, Plan(queues={InstanceId("a100"): tuple(names)})).rows[-1].start


def estimator_wait(form: PlanningForm, requests: int, groups: int) -> Normal:
    """Return the same wait by the estimator."""
    state = form.entry.on_kind.state.corrected(form.correction)
    return waiting_time([QueuePart(state=state, requests=requests, cls=CLASS) for _ in range(groups)])


def main() -> int:
    """Print the standard deviations for 1 to 16 groups, after few and after many answers."""
    rng = random.Random(1)
    for answers in (20, 1000):
        form = form_after(answers, rng)
        requests = round(4 * form.entry.on_kind.state.batch)
        for groups in (1, 4, 16):
            planned, wait = planner_wait(form, requests, groups), estimator_wait(form, requests, groups)
            alone_sd_s = math.sqrt(groups * planner_wait(form, requests, 1).var)
            print(
                f"{answers:5} answers seen, {groups:2} groups of {requests}: mean wait {wait.mean:7.1f} s, "
                f"sd {math.sqrt(planned.var):6.1f} s by the planner, {math.sqrt(wait.var):6.1f} s by the "
                f"estimator, {alone_sd_s:6.1f} s if groups were independent"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
