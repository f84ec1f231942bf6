"""Measure how many groups end within their 90 % intervals: `python -m benchmarks.motion.coverage`.

`... coverage SCENARIO LOAD [SEED] [--arm qlm] [--requests 1000]` simulates one cell and prints one
JSON line. A group is forecast when it is formed, and again when it is sealed: by the estimator (all of it has
ended), and by the plan (all of it has reached the event of its objective), with and without the errors that
groups share. There, groups that grew, shrank or were demoted later are left out. The third forecast is that
of admission (`controller.core.expected`): all requests that a group has then have ended, whatever becomes of
the group. It is made for new and sealed groups, and for each every ten seconds. Scenarios with traces need
`QLM_TRACES`.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeGuard

import numpy as np

from benchmarks.motion.arms import arm_name
from qlm.agents.core.scheduling.visits.backlog import Patience
from qlm.agents.core.state import AgentSettings
from qlm.cli.scenario.workload import draw_scenario
from qlm.controller.core.decide import Decision
from qlm.controller.core.expected.corrected import CorrectedForecasts
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId
from qlm.domain.plan_change import CreateGroup, PlanChange, ResizeGroup
from qlm.planner.problem import GroupTime, Plan, Problem
from qlm.planner.verify.problem_index import ProblemIndex
from qlm.planner.verify.timeline import Served, serve
from qlm.rct_estimator.forecast_errors import WIDTH_SD, inside
from qlm.rct_estimator.normal import Normal
from qlm.simulator.cluster.clients import request_number
from qlm.simulator.cluster.event_queue import EPOCH_NS
from qlm.simulator.evaluation.accuracy import accuracy, group_pairs
from qlm.simulator.evaluation.forecasts import ForecastRecorder
from qlm.simulator.results import NEVER, SimulationResult
from qlm.simulator.rules import policy_named
from qlm.simulator.scenario import Scenario, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.simulation import simulate

AGAIN_NS: Final = 10_000_000_000
"""Time between two corrected forecasts of one group."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Forecast of a group by a plan, seconds from then; with shared errors, and as if there were none."""

    at_ns: int
    requests: int
    first_token: bool
    shared: Normal
    independent: Normal


@dataclass(frozen=True, slots=True)
class Corrected:
    """Corrected forecast of a group, seconds from then.

    Attributes:
        members: Rows of its requests.
        formed: The group was new, or sealed; otherwise it waited.
        ends: Time until all have ended.
    """

    at_ns: int
    members: tuple[int, ...]
    formed: bool
    ends: Normal


class PlanRecorder(ForecastRecorder):
    """Recorder that also keeps what the plan says about each new group, and the one that admission uses."""

    def __init__(self, patience: Patience | None) -> None:
        super().__init__(every=10**9)
        self.planned: dict[GroupId, Planned] = {}
        self.corrected: list[Corrected] = []
        self._patience = patience
        self._again_ns: dict[GroupId, int] = {}

    def on_decided(self, decision: Decision) -> None:
        """Keep the forecasts of new and sealed groups."""
        super().on_decided(decision)
        new = {change.id for change in decision.changes if _is_formed(change)}
        self._correct(decision, new)
        if not new:
            return
        apart = {each.group.id: each for each in _served(_independent(decision.problem), decision.plan)}
        for each in _served(decision.problem, decision.plan):
            if each.group.id in new:
                self.planned[each.group.id] = Planned(
                    at_ns=round(decision.problem.now_s * 1e9),
                    requests=each.group.requests,
                    first_token=".ttft-" in (each.group.cls or ""),
                    shared=each.completion(),
                    independent=apart[each.group.id].completion(),
                )

    def _correct(self, decision: Decision, new: Collection[GroupId]) -> None:
        assert decision.snapshot is not None
        now_ns = decision.snapshot.now_ns
        groups = [group for group, _ in decision.snapshot.groups if group.remaining and not group.cls.late]
        due = [each.id for each in groups if each.id in new or now_ns >= self._again_ns.get(each.id, 0)]
        if not due:
            return
        corrected = CorrectedForecasts.of(decision.snapshot, decision.problem, decision.plan, self._patience)
        members = self._members_of(groups)
        for id in due:
            self._again_ns[id] = now_ns + AGAIN_NS
            ends = corrected.group_ends(id)
            if ends is not None and members[id]:
                self.corrected.append(Corrected(now_ns, members[id], id in new, ends))

    def _members_of(self, groups: Iterable[Group]) -> dict[GroupId, tuple[int, ...]]:
        """Return the waiting requests of groups; the groups of a class are in order of arrival."""
        waiting = defaultdict[RequestClass, list[tuple[int, int]]](list)
        for id, row in self._simulation.services.state.requests.items():
            if row.waiting:
                waiting[row.cls.cls].append((row.metadata.arrival_ns, request_number(id)))
        queues = {cls: iter([number for _, number in sorted(rows)]) for cls, rows in waiting.items()}
        return {each.id: tuple(islice(queues.get(each.cls, iter(())), each.remaining)) for each in groups}


def _is_formed(change: PlanChange) -> TypeGuard[CreateGroup | ResizeGroup]:
    return isinstance(change, CreateGroup) or (isinstance(change, ResizeGroup) and change.sealed)


def _served(problem: Problem, plan: Plan) -> list[Served]:
    return serve(ProblemIndex.of(problem), plan)


def _independent(problem: Problem) -> Problem:
    """Give each group the errors that it shares as its own."""

    def alone(each: GroupTime) -> GroupTime:
        return GroupTime(service=each.whole_service, tail=each.whole_tail)

    groups = (
        replace(group, time={kind: alone(each) for kind, each in group.time.items()})
        for group in problem.groups
    )
    return replace(problem, groups=tuple(groups))


def coverage(recorder: PlanRecorder, result: SimulationResult, of: Callable[[Planned], Normal]) -> list[bool]:
    """Return for each group whether it ended within the plan's interval."""
    outcomes, found = result.outcomes, []
    for id, each in recorder.planned.items():
        members = recorder.groups[id].members if id in recorder.groups else []
        if len(members) != each.requests or any(outcomes.ended_ns[row] == NEVER for row in members):
            continue
        column = outcomes.first_token_ns if each.first_token else outcomes.ended_ns
        took_s = (max(int(column[row]) for row in members) + EPOCH_NS - each.at_ns) / 1e9
        found.append(abs(took_s - of(each).mean) <= WIDTH_SD * of(each).var ** 0.5)
    return found


def corrected_coverage(recorder: PlanRecorder, result: SimulationResult, *, formed: bool) -> list[bool]:
    """Return for each corrected forecast of groups, formed or waiting, whether they ended in its interval."""
    ended_ns, found = result.outcomes.ended_ns, []
    for each in recorder.corrected:
        if each.formed != formed or any(ended_ns[row] == NEVER for row in each.members):
            continue
        took_s = (max(int(ended_ns[row]) for row in each.members) + EPOCH_NS - each.at_ns) / 1e9
        found.append(inside(each.ends, took_s))
    return found


def first(scenario: Scenario, requests: int) -> Scenario:
    """Cut a scenario off after this number of requests."""

    def make(seeds: Seeds) -> Workload:
        whole = scenario.make_workload(seeds)
        columns = {
            name: getattr(whole, name)[:requests]
            for name in whole.__slots__
            if isinstance(getattr(whole, name), np.ndarray)
        }
        return replace(whole, prefixes=whole.prefixes[:requests], **columns)

    return replace(scenario, make_workload=make)


def run(path: Path, arm: str, load: float, seed: int, requests: int) -> dict[str, Any]:
    """Simulate one cell; return its figures."""
    policy, drawn = policy_named(arm), draw_scenario(path, seed, load=load)
    agents = AgentSettings()
    patience = Patience(agents.patience_s, policy.late_weight) if policy.visits else None
    recorder = PlanRecorder(patience)
    scenario = first(drawn.scenario, requests)
    result = simulate(scenario, policy, seed, stopwatch_s=time.perf_counter, observer=recorder)
    estimated = accuracy(group_pairs(result, recorder.groups.values()))
    shared = coverage(recorder, result, lambda each: each.shared)
    independent = coverage(recorder, result, lambda each: each.independent)
    formed, waiting = (corrected_coverage(recorder, result, formed=each) for each in (True, False))
    return {
        "scenario": path.stem,
        "arm": arm,
        "load": load,
        "seed": seed,
        "groups_estimated": estimated.count,
        "in_estimated": round(estimated.coverage, 3),
        "groups_planned": len(shared),
        "in_planned": round(float(np.mean(shared)), 3) if shared else None,
        "in_planned_if_independent": round(float(np.mean(independent)), 3) if shared else None,
        "groups_formed": len(formed),
        "in_corrected_formed": round(float(np.mean(formed)), 3) if formed else None,
        "groups_waiting": len(waiting),
        "in_corrected_waiting": round(float(np.mean(waiting)), 3) if waiting else None,
    }


def main(arguments: Sequence[str]) -> int:
    """Run one cell and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.motion.coverage", description=__doc__)
    parser.add_argument("scenario", type=Path)
    parser.add_argument("load", type=float, help="factor on all arrival rates")
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--arm", type=arm_name, metavar="ARM", default="qlm")
    parser.add_argument("--requests", type=int, default=1000, help="number simulated [%(default)s]")
    options = parser.parse_args(arguments)
    print(json.dumps(run(options.scenario, options.arm, options.load, options.seed, options.requests)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
