"""Planning and printing shared by the commands about plans."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from qlm.cli.inspect.console import DRAWING_COLUMNS_MAX, console
from qlm.cli.inspect.render import span
from qlm.cli.plans.explaining import unservable
from qlm.cli.plans.gantt import gantt
from qlm.cli.plans.missed import missed_lines
from qlm.cli.plans.scaling import KINDS_MAX, ScalingUp, scaling_lines
from qlm.cli.plans.tables import instance_tables, summary
from qlm.controller.core.problem import kinds_to_add
from qlm.domain.errors import InvalidValueError
from qlm.planner.methods import Limits, fleet_forecasts, plan_by, planned_again, scale_up_advice, with_bound
from qlm.planner.policy.misses import Misses, find_misses
from qlm.planner.problem import Plan, Problem
from qlm.planner.verify.referee import Report


def solve(problem: Problem, name: str, limits: Limits) -> Plan:
    """Plan by the named method, with a lower bound of the cost where there is one."""
    limit = "" if limits.time_limit_s is None else f", for {span(limits.time_limit_s)} at most"
    with spinner(f"planning by {name}{limit}"):
        began_s = time.perf_counter()
        plan = plan_by(name, problem, limits)
        took_s = time.perf_counter() - began_s
        if limits.objective == "requests":
            plan = with_bound(problem, plan)
    return plan if plan.solve_s is not None else dataclasses.replace(plan, solve_s=took_s)


def scaling_up(problem: Problem, plan: Plan) -> ScalingUp:
    """Plan larger fleets: about twenty per kind for the fewest instances, and one for one more of each."""
    names = kinds_to_add(problem)
    tried = list(names)[:KINDS_MAX]
    with spinner("planning larger fleets"):
        advice = scale_up_advice(problem, planned_again(problem, plan), names)
        return ScalingUp(
            forecasts=fleet_forecasts(problem, plan, tried),
            fewest=advice.scale_up,
            names=names,
            saved_requests=advice.late_requests - advice.late_after,
            untried=len(names) - len(tried),
        )


def print_scaling(problem: Problem, scaling: ScalingUp) -> None:
    """Print what more instances would change."""
    out = console()
    for line in scaling_lines(problem, scaling):
        out.print(line, highlight=False, markup=False, soft_wrap=isinstance(line, str), crop=False)


def print_plan(
    problem: Problem, plan: Plan, report: Report, instances: tuple[str, ...], rows: int, *, drawn: bool
) -> None:
    """Print the queues, as a drawing too if `drawn`, and a summary of the plan."""
    out = console()
    if drawn:
        for drawing in gantt(problem, report, min(out.width, DRAWING_COLUMNS_MAX)):
            out.print(drawing, no_wrap=True, overflow="crop")
    tables = list(instance_tables(problem, report, instances, rows))
    for table in tables:
        out.print(table, crop=False)
    shown = len(problem.instances) if instances else len(tables)
    for line in summary(problem, plan, report, shown):
        out.print(line, highlight=False, markup=False, soft_wrap=True)


def print_missed(problem: Problem, plan: Plan, report: Report, rows: int) -> None:
    """Print the groups that the plan makes late, with reasons."""
    misses = servable_misses(problem, plan, report, rows)
    if misses is None:
        click.echo("lateness is explained only for plans that can be served")
        return
    out = console()
    for line in missed_lines(problem, misses):
        out.print(line, highlight=False, markup=False, soft_wrap=isinstance(line, str), crop=False)


def servable_misses(problem: Problem, plan: Plan, report: Report, rows: int) -> Misses | None:
    """Find the late groups of a plan, with reasons for `rows` of them; None if it cannot be served."""
    return None if unservable(report) else find_misses(problem, plan, groups_max=rows)


@contextmanager
def spinner(doing: str) -> Iterator[None]:
    """Show on a terminal what is done, and for how long."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield
        return
    with Progress(
        SpinnerColumn(), TextColumn(doing), TimeElapsedColumn(), console=errors, transient=True
    ) as bar:
        bar.add_task("", total=None)
        yield


def check_instances(problem: Problem, instances: tuple[str, ...]) -> None:
    """Raise InvalidValueError for an instance that the problem does not have."""
    known = {each.id for each in problem.instances}
    for name in instances:
        if name not in known:
            raise InvalidValueError("--instance", name, "an instance of the problem")
