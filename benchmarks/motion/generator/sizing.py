"""Sizes of drawn scenarios: lengths that give the aimed length of run, and the rate of load 1.0, measured."""

import tempfile
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import NormalDist
from typing import Final

import numpy as np

from benchmarks.motion.generator.demand import DrawnLengths, ModelDemand
from benchmarks.motion.generator.document import OUTPUT_SHARE, PROMPT_SHARE, Size, contexts, file_text
from benchmarks.motion.generator.draft import REQUESTS_MAX, Draft
from benchmarks.motion.static_placement import FloatArray, Placement, best_saturated, best_split
from qlm.cli.scenario.file import with_errors
from qlm.cli.scenario.workload import draw_scenario
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import steady_state
from qlm.rct_estimator.workload import Workload
from qlm.simulator.seeds import Seeds

LENGTHS: Final = (0.25, 8.0)
"""Least and greatest factor on the drawn lengths."""

STEPS: Final = 12
"""Steps of the bisection for that factor."""

SHORTEST_S: Final = 100.0
LONGEST_S: Final = 2400.0
"""Limits of the length of a run, if the number of requests allows."""

QUANTILES: Final = 64
"""Points at which a distribution of lengths is read."""


def sized(draft: Draft) -> tuple[Size, Placement]:
    """Return the size of a scenario, and the placement whose rate is load 1.0.

    The lengths are such that the run lasts about as long as drawn. The expected rate, from profiles, sizes a
    first version. Its requests, all at once, measure the rate of the best static placement.
    """
    lengths = fitting_lengths(draft)
    expected = size_at(draft, expected_rps(draft, lengths), lengths)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draft.yaml"
        path.write_text(file_text(draft, expected, []), "utf-8")
        drawn = draw_scenario(path, draft.seed).scenario
    rate_rps, placement = best_saturated(drawn, drawn.make_workload(Seeds(draft.seed)))
    return size_at(draft, rate_rps, lengths), placement


def expected_rps(draft: Draft, lengths: float) -> float:
    """Return the rate at which the best static placement is busy all the time, by profiles, without swaps."""
    load, _shares = best_split(expected_work(draft, lengths))
    return 1 / load


def expected_work(draft: Draft, lengths: float) -> FloatArray:
    """Return the work of the models on the instances, as `static_placement.work_of` does for requests."""
    fleet, slow = draft.fleet, draft.disturbances.slow
    work = np.full((len(fleet.models), len(fleet.instances)), np.inf)
    for m, (id, demand) in enumerate(zip(fleet.models, draft.demands, strict=True)):
        shape = _shape(demand, lengths, contexts()[fleet.models[id]])
        for i, instance in enumerate(fleet.instances):
            if id in instance.models:
                profile = _true_profile(draft, id, *instance.kind)
                factor = slow[1] if slow is not None and slow[0] == instance.id else 1.0
                work[m, i] = draft.shares[m] * steady_state(profile, shape).request_s * factor
    return work


def fitting_lengths(draft: Draft) -> float:
    """Return the factor on lengths with which the run lasts as long as it should, as far as it can."""
    wanted_rps = draft.requests / draft.lasts_s
    low, high = log(LENGTHS[0]), log(LENGTHS[1])
    for _ in range(STEPS):
        middle = (low + high) / 2
        if expected_rps(draft, exp(middle)) > wanted_rps:
            low = middle
        else:
            high = middle
    return exp((low + high) / 2)


def size_at(draft: Draft, rate_rps: float, lengths: float) -> Size:
    """Return the size at a rate: as many requests as drawn, more or fewer if the run is too short or long."""
    shortest = min(REQUESTS_MAX, SHORTEST_S * rate_rps)
    requests = max(shortest, min(draft.requests, LONGEST_S * rate_rps))
    return Size(rate_rps=rate_rps, lasts_s=requests / rate_rps, lengths=lengths)


def _true_profile(draft: Draft, id: str, accelerator: str, gpus: int) -> Profile:
    profile = find_profile(builtin_profiles(), draft.fleet.models[id], accelerator, gpus)
    for wrong in draft.disturbances.wrong:
        if wrong.model in (None, id) and wrong.accelerator == accelerator:
            profile = with_errors(profile, iterations=wrong.iterations, swaps=wrong.swaps)
    return profile


def _shape(demand: ModelDemand, lengths: float, context: int) -> Workload:
    prompts = _quantiles(demand.prompt, lengths, PROMPT_SHARE * context)
    answers = _quantiles(demand.output, lengths, OUTPUT_SHARE * context)
    return Workload(
        prompt_tokens=float(np.mean(prompts)),
        output=Normal(max(1.0, float(np.mean(answers))), float(np.var(answers))),
        prompt_var=float(np.var(prompts)),
    )


def _quantiles(drawn: DrawnLengths, factor: float, most: float) -> Sequence[float]:
    normal = NormalDist(log(drawn.median * factor), max(drawn.sigma, 1e-6))
    points = [(number + 0.5) / QUANTILES for number in range(QUANTILES)]
    return [min(most, max(1.0, exp(normal.inv_cdf(point)))) for point in points]
