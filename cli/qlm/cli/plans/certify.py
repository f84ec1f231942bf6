"""Certificates of plans: made with progress on the terminal, and shown as text and JSON."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rich.console import Console

from qlm.cli.plans.tables import percent, price, shown_gap
from qlm.domain.errors import InvalidValueError
from qlm.planner.certify.certificate import TIME_LIMIT_S, Certificate, Progress
from qlm.planner.extra import needs_solvers
from qlm.planner.limits import TIME_LIMIT_MIN_S
from qlm.planner.methods import Limits
from qlm.planner.plan_json import plan_to_plain
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.referee import gap

PLAN_SHARE: Final = 0.15
"""Share of the time limit for the plan; the rest is for the proof."""

_WHY_ENDED: Final = {
    "proven": "no plan is better",
    "converged": "the method proves no higher bound",
    "limit": "stopped at the time limit; more time may prove a higher bound",
}


def plan_limits(limits: Limits) -> Limits:
    """Return the limits of a plan that is to be certified.

    Raises:
        InvalidValueError: The bound does not hold for the objective.
    """
    if limits.objective != "requests":
        raise InvalidValueError("--objective", limits.objective, "requests, with --certify")
    if limits.iterations is not None:
        return replace(limits, time_limit_s=None)
    return replace(limits, time_limit_s=max(TIME_LIMIT_MIN_S, PLAN_SHARE * _whole_s(limits)))


def certified(problem: Problem, plan: Plan, limits: Limits, began_s: float) -> Certificate:
    """Prove a bound in what is left of the time limit since `began_s`, and show the progress.

    On a terminal that is a spinner with the bound; elsewhere nothing.
    """
    with needs_solvers("the certificate"):  # numba and HiGHS take a second to import
        from qlm.planner.certify.certify import certify
    errors = Console(stderr=True)
    left_s = max(0.0, _whole_s(limits) - (time.perf_counter() - began_s))
    if not errors.is_terminal:
        return certify(problem, plan, stopwatch_s=time.perf_counter, time_limit_s=left_s, seed=limits.seed)
    with errors.status("proving a bound") as status:

        def notify(progress: Progress) -> None:
            status.update(
                f"proving a bound: {progress.stage}, {price(progress.bound_s)}, {progress.took_s:.0f} s"
            )

        return certify(
            problem, plan, stopwatch_s=time.perf_counter, time_limit_s=left_s, seed=limits.seed, notify=notify
        )


def certificate_lines(problem: Problem, certificate: Certificate) -> Iterator[str]:
    """Yield the result of a proof as sentences."""
    plan, share = certificate.plan, shown_gap(problem, certificate.plan)
    assert plan.penalty_s is not None and plan.lower_bound_s is not None
    shown = "unknown" if share is None else percent(share)
    yield (
        f"certificate: the plan costs {price(plan.penalty_s)}, every plan at least "
        f"{price(plan.lower_bound_s)}, gap {shown}"
    )
    yield (
        f"{_WHY_ENDED[certificate.ended]} ({certificate.took_s:.1f} s, {certificate.rounds} rounds, "
        f"{certificate.columns} queues)"
    )
    if certificate.apart:
        yield f"{certificate.apart} groups with short service times count by their simple bound"


def certificate_text(problem: Problem, certificate: Certificate) -> str:
    """Encode a plan and the proof of its bound as JSON."""
    plan = certificate.plan
    made = {
        "certificate": {
            "penalty_s": plan.penalty_s,
            "lower_bound_s": plan.lower_bound_s,
            "gap": gap(problem, plan),
            "ended": certificate.ended,
            "rounds": certificate.rounds,
            "columns": certificate.columns,
            "apart": certificate.apart,
            "took_s": certificate.took_s,
        },
        "plan": plan_to_plain(plan),
    }
    return json.dumps(made, indent=2, allow_nan=False)


def _whole_s(limits: Limits) -> float:
    return TIME_LIMIT_S if limits.time_limit_s is None else limits.time_limit_s
