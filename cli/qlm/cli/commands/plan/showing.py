"""Drawing and checking a plan, for `qlm plan show`."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from qlm.cli.commands.options import admin_client, print_json
from qlm.cli.commands.plan.options import plan_errors
from qlm.cli.commands.plan.output import (
    check_instances,
    print_missed,
    print_plan,
    print_scaling,
    scaling_up,
    servable_misses,
    spinner,
)
from qlm.cli.inspect.admin_client import AdminClient
from qlm.cli.plans.files import read_plan, read_problem
from qlm.cli.plans.live import age, fetch_clusters, fetch_plan, late_already
from qlm.cli.plans.tables import cluster_lines, sampled
from qlm.planner.problem import Objective, Plan, Problem
from qlm.planner.published_plan import PublishedPlan
from qlm.planner.verify.monte_carlo import Estimate, sample
from qlm.planner.verify.referee import verify


def show_plan(
    problem_path: Path | None,
    plan_path: Path | None,
    *,
    url: str | None,
    config_file: Path | None,
    objective: Objective | None,
    instances: tuple[str, ...],
    rows: int,
    as_json: bool,
    why: bool,
    scale_up: bool,
    samples: int | None,
    seed: int,
) -> None:
    """Draw and check a stored plan, or that of a running QLM if there is no problem; see `qlm plan show`.

    Raises:
        SystemExit: The plan violates a constraint, or there is no plan.
    """
    with plan_errors():
        client = partial(admin_client, url, config_file)
        problem, plan, kept = _plan(problem_path, plan_path, client)
        clusters = [] if kept is None else fetch_clusters(client())
        check_instances(problem, instances)
        objective = objective or plan.objective
        report = verify(problem, plan, objective=objective)
        scaling = scaling_up(problem, plan) if scale_up else None
        estimate = None if samples is None else _sample(problem, plan, objective, samples, seed)
    if as_json:
        plain: dict[str, Any] = dataclasses.asdict(report)
        plain |= {} if kept is None else {"at_ms": kept.at_ms, "clusters": clusters}
        plain |= {"sampled": None if estimate is None else dataclasses.asdict(estimate)}
        plain |= {"scale_up": None if scaling is None else scaling.plain()}
        misses = servable_misses(problem, plan, report, rows) if why else None
        print_json(plain | {"missed": None if misses is None else dataclasses.asdict(misses)})
    else:
        if kept is not None:
            click.echo(age(kept, time.time()))
        print_plan(problem, plan, report, instances, rows, drawn=True)
        for line in cluster_lines(clusters):
            click.echo(line)
        if why:
            print_missed(problem, plan, report, rows)
            if kept is not None and (late := late_already(client())):
                click.echo(late)
        if scaling is not None:
            print_scaling(problem, scaling)
        if estimate is not None:
            click.echo(sampled(estimate))
    if report.violations:
        raise SystemExit(1)


def _plan(
    problem_path: Path | None, plan_path: Path | None, client: Callable[[], AdminClient]
) -> tuple[Problem, Plan, PublishedPlan | None]:
    if problem_path is None or plan_path is None:
        kept = fetch_plan(client())
        return kept.problem, kept.plan, kept
    problem = read_problem(problem_path)
    return problem, read_plan(plan_path, problem), None


def _sample(problem: Problem, plan: Plan, objective: Objective, samples: int, seed: int) -> Estimate:
    with spinner("sampling"):
        generator = np.random.default_rng(seed)
        return sample(problem, plan, generator=generator, samples=samples, objective=objective)
