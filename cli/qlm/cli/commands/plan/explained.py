"""Explaining the position of a group or request, for `qlm plan explain`."""

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qlm.cli.commands.options import admin_client, print_json
from qlm.cli.commands.plan.options import plan_errors
from qlm.cli.commands.plan.output import solve
from qlm.cli.inspect.admin_client import AdminClient, AdminError
from qlm.cli.inspect.console import console
from qlm.cli.inspect.layout import Table
from qlm.cli.plans.batching_text import policy_of, reader_text_s
from qlm.cli.plans.explaining import (
    PLACES_SHOWN,
    group_sentences,
    has_group,
    request_sentences,
    unservable,
)
from qlm.cli.plans.files import read_plan, read_problem
from qlm.cli.plans.live import age_note, fetch_groups, fetch_plan_if_any, fetch_request
from qlm.cli.plans.request import find_place
from qlm.cli.plans.tables import explanation
from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId
from qlm.planner.methods import Limits
from qlm.planner.problem import Objective
from qlm.planner.verify.explain import Explanation, explain, json_fields
from qlm.planner.verify.referee import verify


def explain_live(
    name: str, *, url: str | None, config_file: Path | None, objective: Objective | None, as_json: bool
) -> None:
    """Explain a group or request of a running QLM."""
    with plan_errors():
        _explain_live(admin_client(url, config_file), name, objective, as_json)


def explain_stored(
    name_asked: str,
    problem_path: Path,
    *,
    plan_path: Path | None,
    name: str,
    objective: Objective | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Explain a group of a stored problem, which is planned by the method `name` unless it has a plan."""
    with plan_errors():
        problem = read_problem(problem_path)
        if not has_group(problem, name_asked):
            raise InvalidValueError("GROUP", name_asked, "a group of the problem")
        if plan_path is None:
            objective = objective or "requests"
            plan = solve(problem, name, Limits(objective=objective, stopwatch_s=time.perf_counter, **limits))
        else:
            plan = read_plan(plan_path, problem)
            objective = objective or plan.objective
            if wrong := unservable(verify(problem, plan, objective=objective)):
                raise InvalidValueError("--plan", str(plan_path), f"a plan that can be served; {wrong}")
        explained = explain(problem, plan, GroupId(name_asked), objective=objective)
    if as_json:
        _print_json(explained, {})
    else:
        _print_all(explanation(problem, explained, PLACES_SHOWN))


def _explain_live(client: AdminClient, name: str, wanted: Objective | None, as_json: bool) -> None:
    kept = fetch_plan_if_any(client)
    objective = wanted or ("requests" if kept is None else kept.plan.objective)
    if kept is not None and (wrong := unservable(verify(kept.problem, kept.plan, objective=objective))):
        raise AdminError(f"the live plan cannot be explained: {wrong}")
    if kept is not None and has_group(kept.problem, name):
        if as_json:
            explained = explain(kept.problem, kept.plan, GroupId(name), objective=objective)
            _print_json(explained, {"at_ms": kept.at_ms})
        else:
            _print_all(group_sentences(name, kept, time.time(), objective))
        return
    request = fetch_request(client, name)
    if request is None:
        seen = "there is no plan yet" if kept is None else age_note(kept, time.time())
        raise InvalidValueError(
            "GROUP_OR_REQUEST", name, f"a group with waiting requests ({seen}), or the id of a known request"
        )
    classmates = fetch_groups(client, request["queue"]) if request.get("waits") else []
    configured, now_s = client.get("/admin/v1/instances").get("configured", ()), time.time()
    if as_json:
        plan = None if kept is None else {"at_ms": kept.at_ms, "method": kept.plan.method}
        found = find_place(request, kept, classmates, objective)
        place = None if found is None else found.plain()
        policy = policy_of(configured, request["instance"])
        batching = {"policy": policy, "reader_text_s": reader_text_s(request, now_s)}
        print_json({"request": request, "plan": plan, "place": place, "batching": batching})
    else:
        _print_all(request_sentences(request, kept, classmates, configured, now_s, objective))


def _print_json(explained: Explanation, more: dict[str, Any]) -> None:
    print_json(dataclasses.asdict(explained, dict_factory=json_fields) | more)


def _print_all(parts: Iterable[Table | str]) -> None:
    out = console()
    for part in parts:
        out.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str), crop=False)
