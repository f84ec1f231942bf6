"""Monte Carlo estimate of a plan's penalty: a second path to the objective."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qlm.planner.limits import ON_TIME_S, SAMPLED_REQUESTS_MAX, SAMPLES_MAX
from qlm.planner.plain_reader import count_at_most, number
from qlm.planner.problem import Objective, Plan, Problem
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, serve
from qlm.rct_estimator.normal import Normal

Floats = NDArray[np.float64]

_BLOCK: Final = 1_000_000
"""Completion times computed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Means over samples, with their standard errors.

    Attributes:
        penalty_s: Mean penalty.
        penalty_se_s: Its standard error.
        expected_attainment: Share of the requests with a deadline that meet it.
        attainment_se: Its standard error.
        samples: Number of samples.
    """

    penalty_s: float
    penalty_se_s: float
    expected_attainment: float
    attainment_se: float
    samples: int


def sample(
    problem: Problem,
    plan: Plan,
    *,
    generator: np.random.Generator,
    samples: int,
    objective: Objective = "requests",
) -> Estimate:
    """Draw busy times, service times and tails as normal variables, and serve the queues with them.

    In a sample, all requests of a group share its service time, and its tail also delays the next model. A
    class has one error of its mean length on all instances, an instance one error of its speed. Each instance
    has random numbers of its own, derived in order of the ids.

    Args:
        problem: The problem.
        plan: A plan of it; groups that cannot be served are left out, as by `verify`.
        generator: Source of the random numbers.
        samples: Number of samples; at least 2.
        objective: Penalty to compute.

    Raises:
        InvalidValueError: Too few or too many samples, or too many for the number of requests.
    """
    number("samples", samples, least=2, most=SAMPLES_MAX)
    index = ProblemIndex.of(problem)
    served = serve(index, plan)
    requests = sum(each.group.requests for each in served)
    count_at_most("samples times requests", samples * requests, SAMPLED_REQUESTS_MAX)
    penalty_s, late = np.zeros(samples), np.zeros(samples)
    errors = _class_errors(served, generator, samples)
    for queue in _queues(served):
        random = np.random.default_rng(generator.integers(2**63))
        _add_queue(queue, problem, random, errors, objective, penalty_s, late)
    moved = sum(index.moved(each.group.id, each.instance.id) for each in served)
    penalty_s += problem.move_s * moved
    wanted = sum(group.requests for group in problem.groups if group.deadline_s is not None)
    placed = sum(each.group.requests for each in served if each.group.deadline_s is not None)
    met = (placed - late) / wanted if wanted else np.ones(samples)
    return Estimate(
        penalty_s=float(penalty_s.mean()),
        penalty_se_s=_standard_error(penalty_s),
        expected_attainment=float(met.mean()),
        attainment_se=_standard_error(met),
        samples=samples,
    )


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values))


def _class_errors(
    served: Sequence[Served], generator: np.random.Generator, samples: int
) -> Mapping[str, Floats]:
    """Draw the error of each class's mean length, in standard deviations; (samples,) each."""
    classes = sorted({each.group.cls for each in served if each.group.cls and each.time.class_sd_s})
    return {name: generator.standard_normal(samples) for name in classes}


def _queues(served: Sequence[Served]) -> Iterator[list[Served]]:
    queue: list[Served] = []
    for each in served:
        if queue and each.place == 0:
            yield queue
            queue = []
        queue.append(each)
    if queue:
        yield queue


def _add_queue(
    queue: Sequence[Served],
    problem: Problem,
    random: np.random.Generator,
    errors: Mapping[str, Floats],
    objective: Objective,
    penalty_s: Floats,
    late: Floats,
) -> None:
    """Serve one queue in all samples; add its penalty and its late requests."""

    def drawn(normal: Normal) -> Floats:
        return random.normal(normal.mean, math.sqrt(normal.var), len(penalty_s))

    now = drawn(queue[0].instance.busy)
    tail = np.full(len(penalty_s), queue[0].instance.leave_s)
    speeds = any(each.time.speed_sd_s or each.time.tail_speed_sd_s for each in queue)
    speed = random.standard_normal(len(penalty_s)) if speeds else np.zeros(len(penalty_s))
    for each in queue:
        if each.swap is not None:
            now = now + tail + each.swap_s
        time, name = each.time, each.group.cls
        # Without a class, the error of the mean length is the group's own.
        own_var = time.service.var + (0.0 if name else time.class_sd_s**2)
        service = drawn(Normal(time.service.mean, own_var)) + time.speed_sd_s * speed
        if name is not None and name in errors:
            service = service + time.class_sd_s * errors[name]
        tail = drawn(time.tail) + time.tail_speed_sd_s * speed
        if each.group.deadline_s is not None:
            over_s = now + tail - (each.group.deadline_s - problem.now_s)
            late_s, missed = _late(over_s, service, each.group.requests)
            late += missed
            weighed = late_s + problem.miss_weight_s * missed
            penalty_s += over_s + service if objective == "paper" else weighed
            if objective == "requests":
                short = max(0.0, float(missed.mean()) - each.group.misses_allowed)
                penalty_s += problem.promise_s * short
        now = now + service


def _late(over_s: Floats, service: Floats, requests: int) -> tuple[Floats, Floats]:
    """Sum lateness and misses over the requests of a group, in each sample.

    Args:
        over_s: Start plus tail less deadline; (samples,).
        service: Service time; (samples,).
        requests: Number of requests that share it.
    """
    late_s, missed = np.empty_like(over_s), np.empty_like(over_s)
    share = np.arange(1, requests + 1) / requests
    rows = max(1, _BLOCK // requests)
    for at in range(0, len(over_s), rows):
        block = slice(at, at + rows)
        x = over_s[block, None] + service[block, None] * share
        late = x > ON_TIME_S
        missed[block] = np.count_nonzero(late, axis=1)
        late_s[block] = np.where(late, x, 0.0).sum(axis=1)
    return late_s, missed
