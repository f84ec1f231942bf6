"""Formats plans as tables and sentences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from qlm.cli.inspect import render
from qlm.cli.inspect.layout import Table
from qlm.controller.core.problem import accelerator_of
from qlm.domain.ids import InstanceId
from qlm.planner.method_names import KEPT
from qlm.planner.problem import Instance, Plan, Problem
from qlm.planner.verify.constraints import Violation
from qlm.planner.verify.explain import Explanation, Place, Step
from qlm.planner.verify.monte_carlo import Estimate
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.referee import GroupRow, Report, gap, keeps_promise
from qlm.rct_estimator.normal import Normal

INSTANCES_SHOWN = 20
"""Instances shown with a table, unless some are selected by name."""

PRICE_MIN_S = 1e-3
"""A smaller cost is shown as 0."""

LISTED = 10
"""Violations and unplaceable groups that are listed."""


def instance_tables(
    problem: Problem, report: Report, wanted: Sequence[str], rows_max: int
) -> Iterator[Table]:
    """Yield one table per instance with its groups in order.

    Args:
        problem: The planned problem.
        report: Report on the plan.
        wanted: Instances to show; the first ones if empty.
        rows_max: Largest number of groups shown of each.
    """
    rows: dict[InstanceId, list[GroupRow]] = {each.id: [] for each in problem.instances}
    for row in report.rows:
        rows[row.instance].append(row)
    shown = sorted(problem.instances, key=lambda each: each.id)
    chosen = [each for each in shown if each.id in wanted] if wanted else shown[:INSTANCES_SHOWN]
    models = {group.id: group.model for group in problem.groups}
    for instance in chosen:
        hidden = len(rows[instance.id]) - rows_max
        yield render.table(
            _heading(instance),
            (
                "#>",
                "group",
                "model",
                "requests>",
                "swap",
                "start>",
                "completion>",
                "deadline>",
                "met>",
                "late>",
            ),
            (_cells(row, models[row.group]) for row in rows[instance.id][:rows_max]),
            spare=("start", "swap", "model", "#", "deadline"),
            notes=[f"… {hidden} more groups"] if hidden > 0 else [],
        )


def summary(problem: Problem, plan: Plan, report: Report, instances_shown: int) -> Iterator[str]:
    """Yield lines about the cost and effects of the plan."""
    if instances_shown < len(problem.instances):
        hidden = len(problem.instances) - instances_shown
        yield f"… {hidden} more instances: --instance NAME shows one, --json all"
    yield _cost(problem, plan, report)
    yield (
        f"model changes: {report.swaps_warm} warm, "
        + (f"{report.swaps_reload} reloaded, " if report.swaps_reload else "")
        + f"{report.swaps_cold} cold, {render.span(report.swap_s)} in all; groups moved: {len(report.moved)}"
        + (f", for {price(report.move_s)}" if report.move_s else "")
    )
    yield from _promises(report)
    yield from _unplaceable(problem, plan)
    if plan.scale_up:
        added = ", ".join(f"{each.count} more of {each.kind}" for each in plan.scale_up)
        yield f"what is missed would be repaired by {added}"
    if plan.method == KEPT:
        yield "the earlier plan, kept since no better one was found"
    elif plan.method:
        took = "" if plan.solve_s is None else f" in {plan.solve_s:.3f} s"
        yield f"made by {plan.method}{took}"
    yield from violated(report.violations)


def violated(violations: Sequence[Violation]) -> Iterator[str]:
    """Yield lines about the constraints that a plan violates."""
    for each in violations[:LISTED]:
        yield f"violated: {each.constraint}: {each.detail}"
    if len(violations) > LISTED:
        yield f"… {len(violations) - LISTED} more violations"


def cluster_lines(clusters: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Format the classes that are divided by the length of prompts, one per line."""
    for each in clusters:
        objective = "all objectives" if each["slo_class"] is None else each["slo_class"]
        priority = f", priority {each['priority']}" if each["priority"] else ""
        names = ", ".join(each["clusters"])
        yield f"prompts of {each['model']}, {objective}{priority}, are divided by tokens: {names}"


def sampled(estimate: Estimate) -> str:
    """Format a penalty estimated by samples."""
    penalty = f"{price(estimate.penalty_s)} ± {estimate.penalty_se_s:.2g} s"
    met = f"{100 * estimate.expected_attainment:.2f} ± {100 * estimate.attainment_se:.2g} %"
    return f"{estimate.samples} samples: penalty {penalty}, {met} in time"


def explanation(problem: Problem, explained: Explanation, places_max: int) -> Iterator[Table | str]:
    """Explain the position of a group."""
    group = explained.group
    deadline = "no deadline"
    if group.deadline_s is not None:
        deadline = f"deadline {relative(group.deadline_s - problem.now_s)}"
    requests = count(group.requests, "request")
    yield f"{group.id}: {group.model}, {requests}, {deadline}, priority {group.priority}"
    if explained.why_unplaceable is not None:
        yield f"cannot be placed: {explained.why_unplaceable}"
        return
    if explained.steps:
        yield from _standing(ProblemIndex.of(problem), explained)
    else:
        yield "the plan places it nowhere"
    home = ProblemIndex.of(problem).home.get(group.id)
    options = [*([("first", explained.first)] if explained.first and len(explained.steps) > 1 else [])]
    options += [("elsewhere", place) for place in explained.elsewhere[:places_max]]
    yield render.table(
        "other places, all else as it is",
        ("instance", "#>", "swap", "start>", "completion>", "met>", "penalty change>", "note"),
        (_option(what, place, home) for what, place in options),
        spare=("start", "#", "swap"),
    )
    if len(explained.elsewhere) > places_max:
        yield f"… {len(explained.elsewhere) - places_max} more instances, none of them better"


def count(number: int, what: str) -> str:
    """Format a count with its noun, singular or plural."""
    return f"{number} {what}" + ("" if number == 1 else "s")


def relative(seconds: float) -> str:
    """Format a time relative to now: `in 12s`, `3.0min ago`."""
    return f"in {render.span(seconds)}" if seconds >= 0 else f"{render.span(-seconds)} ago"


def _heading(instance: Instance) -> str:
    loaded = instance.loaded_model or "nothing"
    busy = f", busy for {around(instance.busy)}" if instance.busy.mean else ""
    return f"{instance.id} ({accelerator_of(instance.kind)}): {loaded} loaded{busy}"


def _cells(row: GroupRow, model: str) -> tuple[object, ...]:
    has_deadline = row.deadline_s is not None
    return (
        row.place + 1,
        row.group + (" (moved)" if row.moved else ""),
        model,
        row.requests,
        _swap(row),
        render.span(row.start.mean),
        around(row.completion),
        None if row.deadline_s is None else relative(row.deadline_s),
        met(row) if has_deadline else None,
        f"{row.late_requests:.1f}" if has_deadline else None,
    )


def _swap(row: GroupRow) -> str | None:
    return None if row.swap is None else f"{row.swap} {render.span(row.swap_s)}"


def around(when: Normal) -> str:
    """Format a time with its standard deviation."""
    return render.span(when.mean) + (f" ±{render.span(when.var**0.5)}" if when.var else "")


def price(cost_s: float, sign: str = "-") -> str:
    """Format a cost; less than a millisecond is 0."""
    return f"{cost_s:{sign}.6g} s" if abs(cost_s) >= PRICE_MIN_S else "0 s"


def met(row: GroupRow) -> str:
    """Format the expected share of a group's requests in time, and whether that keeps a promise."""
    if row.promised is None:
        return percent(row.p_met)
    kept = "kept" if keeps_promise(row) else "broken"
    return f"{percent(row.p_met)} ({percent(row.promised)} promised: {kept})"


def shown_gap(problem: Problem, plan: Plan) -> float | None:
    """Return the optimality gap of a plan; None if its bound is 0, from which any plan can be far."""
    bound_s = plan.lower_bound_s or 0.0
    return gap(problem, plan) if bound_s >= PRICE_MIN_S or not plan.penalty_s else None


def percent(share: float) -> str:
    """Format a share as a percentage."""
    return f"{100 * share:.1f} %"


def _cost(problem: Problem, plan: Plan, report: Report) -> str:
    line = f"penalty {price(report.penalty_s)}"
    if plan.lower_bound_s is not None and plan.objective == report.objective:
        share = shown_gap(problem, plan)
        shown = "" if share is None else f", gap {percent(share)}"
        line += f" (no plan is below {price(plan.lower_bound_s)}{shown})"
    wanted = sum(group.requests for group in problem.groups if group.deadline_s is not None)
    if not wanted:
        return f"{line}; no waiting request has a deadline"
    return f"{line}; {percent(report.expected_attainment)} of {wanted} requests with a deadline in time"


def _promises(report: Report) -> Iterator[str]:
    promised = [row for row in report.rows if row.promised is not None]
    if promised:
        kept = sum(keeps_promise(row) for row in promised)
        line = f"promises: {kept} of {count(len(promised), 'group')} kept"
        short = f"; {report.short_requests:.1f} requests short, for {price(report.promise_s)}"
        yield line + (short if kept < len(promised) else "")


def _unplaceable(problem: Problem, plan: Plan) -> Iterator[str]:
    places = ProblemIndex.of(problem)
    for name in plan.unplaceable[:LISTED]:
        yield f"unplaceable: {name}: {places.why_unplaceable(places.groups[name])}"
    if len(plan.unplaceable) > LISTED:
        yield f"… {len(plan.unplaceable) - LISTED} more unplaceable groups"


def _standing(places: ProblemIndex, explained: Explanation) -> Iterator[Table | str]:
    row = explained.steps[-1].row
    moved = f", moved from {places.home[row.group]}" if row.moved else ""
    yield f"place {row.place + 1} on {row.instance}{moved}: waits for"
    assert explained.busy is not None
    models = {id: group.model for id, group in places.groups.items()}
    yield render.table(
        "",
        ("#>", "group", "model", "requests>", "priority>", "deadline>", "takes>", "before it", "until>"),
        (
            (
                0,
                "what runs now",
                None,
                None,
                None,
                None,
                around(explained.busy),
                None,
                around(explained.busy),
            ),
            *(
                _predecessor(step, models[step.row.group], places.groups[step.row.group].priority)
                for step in explained.steps[:-1]
            ),
        ),
    )
    change = _before(explained.steps[-1])
    yield (f"then {change}; " if change else "") + f"starts {relative(row.start.mean)}"
    line = f"last request answered {relative(row.completion.mean)} (±{render.span(row.completion.var**0.5)})"
    if row.deadline_s is not None:
        line += (
            f"; {met(row)} of its requests in time, {row.late_requests:.1f} late, "
            f"the last one late with {percent(row.p_last_late)}; costs {price(row.penalty_s)}"
        )
    yield line


def _predecessor(step: Step, model: str, priority: int) -> tuple[object, ...]:
    row = step.row
    return (
        row.place + 1,
        row.group,
        model,
        row.requests,
        priority,
        None if row.deadline_s is None else relative(row.deadline_s),
        around(step.service),
        _before(step),
        around(step.leaves),
    )


def _before(step: Step) -> str | None:
    if step.row.swap is None:
        return None
    tail = f"tail {render.span(step.waits_for_tail.mean)}, " if step.waits_for_tail.mean else ""
    return f"{tail}{step.row.swap} swap {render.span(step.row.swap_s)}"


def _option(what: str, place: Place, home: InstanceId | None) -> tuple[object, ...]:
    row = place.row
    notes = [] if what == "elsewhere" else ["first in its queue"]
    notes += [] if place.allowed else ["passes over a higher priority"]
    notes += ["moved"] if row.moved else []
    notes += ["where it stands at present"] if row.instance == home else []
    return (
        row.instance,
        row.place + 1,
        _swap(row),
        render.span(row.start.mean),
        around(row.completion),
        None if row.deadline_s is None else met(row),
        price(place.change_s, sign="+"),
        ", ".join(notes) or None,
    )
