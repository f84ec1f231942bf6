"""Planning the problem of a file, for `qlm plan`."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from qlm.cli.commands.plan.options import plan_errors
from qlm.cli.commands.plan.output import (
    check_instances,
    print_missed,
    print_plan,
    print_scaling,
    scaling_up,
    solve,
    spinner,
)
from qlm.cli.plans.certify import certificate_lines, certificate_text, certified, plan_limits
from qlm.cli.plans.files import check_out, plan_text, read_problem, write_plan
from qlm.planner.certify.certificate import Certificate
from qlm.planner.methods import Limits, method
from qlm.planner.policy.misses import LATE_REQUESTS_MIN
from qlm.planner.problem import Objective, Plan, Problem
from qlm.planner.verify.referee import verify
from qlm.planner.warm_up import warm_up_certified


def plan_problem(
    problem_path: Path,
    name: str,
    limits: Mapping[str, Any],
    *,
    objective: Objective,
    instances: tuple[str, ...],
    rows: int,
    as_json: bool,
    scale_up: bool,
    certify: bool,
    out: Path | None,
) -> None:
    """Plan a problem by the method `name`, and print the plan."""
    with plan_errors():
        problem = read_problem(problem_path)
        check_instances(problem, instances)
        if out is not None:
            check_out(out)
        given = Limits(objective=objective, stopwatch_s=time.perf_counter, **limits)
        plan, certificate = _planned(problem, name, given, certify)
        scaling = scaling_up(problem, plan) if scale_up else None
        made = plan if scaling is None else replace(plan, scale_up=scaling.fewest)
        report = verify(problem, plan, objective=objective)
        if out is not None:
            write_plan(out, made)
    if certificate is not None and as_json:
        click.echo(certificate_text(problem, replace(certificate, plan=made)))
    elif as_json:
        click.echo(plan_text(made))
    else:
        print_plan(problem, plan, report, instances, rows, drawn=False)
        if report.late_requests >= LATE_REQUESTS_MIN:
            print_missed(problem, plan, report, rows)
        if scaling is not None:
            print_scaling(problem, scaling)
        if objective == "paper" and objective not in method(name).minimises:
            click.echo(f"{name} does not minimise the objective {objective}, which only prices its plan")
        for line in () if certificate is None else certificate_lines(problem, certificate):
            click.echo(line)


def _planned(problem: Problem, name: str, limits: Limits, certify: bool) -> tuple[Plan, Certificate | None]:
    """Plan, and prove a bound if wanted."""
    if not certify:
        return solve(problem, name, limits), None
    with spinner("compiling, unless that was done before"):
        warm_up_certified(name)
    began_s = time.perf_counter()
    plan = solve(problem, name, plan_limits(limits))
    certificate = certified(problem, plan, limits, began_s)
    return certificate.plan, certificate
