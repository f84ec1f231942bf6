"""Workloads of tasks: each call arrives a pause after the one before it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.tasks.drawn import CALLS, PAUSE_MAX_S, Size, draw
from benchmarks.tasks.placed import WAYS, figures, scenario_of
from benchmarks.tasks.rules import RULES, OfGateways
from qlm.agents.core.stats.gpu_time import GpuUse
from qlm.domain.errors import InvalidValueError
from qlm.domain.slo import DeadlineSlo
from qlm.simulator.report import requests_csv, summary
from qlm.simulator.results import REFUSED, SimulationResult
from qlm.simulator.scenario import BrokerOutage, Fault, SloClass, Workload
from qlm.simulator.seeds import Seeds
from qlm.simulator.tasks import ChosenObjective, TaskCalls
from support.simulation import run, scenario

SIZE = Size(tasks=5, tasks_per_s=0.5)
CALL = SloClass(name="call", slo=DeadlineSlo(deadline_ms=60_000))


def short(seeds: Seeds) -> Workload:
    """Return tasks whose prompts fit the small models of tests."""
    drawn = draw(SIZE, seeds)
    return replace(
        drawn, prompt_tokens=np.minimum(drawn.prompt_tokens, 3_000), prefixes=(), prefix_tokens=None
    )


def simulated(rule: str | None = "slo.task", faults: tuple[Fault, ...] = ()) -> SimulationResult:
    make = None if rule is None else RULES[rule]
    subject = scenario(short, instances=1, faults=faults)
    return run(replace(subject, slo_classes=(CALL,), call_objectives=make), policy="qlm")


@pytest.mark.parametrize("rule", [None, *RULES])
def test_each_call_arrives_a_pause_after_the_end_of_the_one_before(rule: str | None) -> None:
    result = simulated(rule)
    tasks, outcomes = result.workload.tasks, result.outcomes
    assert tasks is not None
    assert set(outcomes.outcome) <= {"stop", "length"}
    later = np.flatnonzero(np.diff(tasks.task) == 0) + 1
    assert np.array_equal(outcomes.arrival_ns[later] - outcomes.ended_ns[later - 1], tasks.pause_ns[later])
    first = np.flatnonzero(np.diff(tasks.task, prepend=-1))
    assert np.array_equal(outcomes.arrival_ns[first], result.workload.arrival_ns[first])
    assert summary(result)["unfinished"] == 0


def test_equal_seeds_give_equal_bytes() -> None:
    assert requests_csv(simulated()) == requests_csv(simulated())


def test_calls_after_a_refused_one_never_come() -> None:
    result = simulated(faults=(BrokerOutage(at_s=0.0, for_s=1e4),))
    tasks = result.workload.tasks
    assert tasks is not None
    first = np.diff(tasks.task, prepend=-1) > 0
    refused = np.array([each == REFUSED for each in result.outcomes.outcome])
    assert np.array_equal(refused, first)
    assert np.all(result.outcomes.arrival_ns[~first] < 0)
    summed = summary(result)
    assert (summed["submitted"], summed["not_arrived"]) == (first.sum(), (~first).sum())
    assert summed["counted"] == len(result.workload), "calls that never come are missed"
    assert summed["attainment"] == 0.0


def test_calls_find_more_of_earlier_ones_where_tasks_have_homes() -> None:
    size = Size(tasks=16, tasks_per_s=1.0)
    mixed, homed = (figures(run(scenario_of(way, 2, size), policy=WAYS[way])) for way in ("mixed", "strands"))
    assert homed["hits"] > mixed["hits"] + 0.02


def test_without_tasks_strands_change_nothing() -> None:
    subject = scenario(lambda seeds: replace(short(seeds), tasks=None), instances=2)
    alone = replace(subject, slo_classes=(CALL,))
    assert outcomes_of(run(alone, policy="qlm")) == outcomes_of(run(alone, policy="qlm+mixed"))


class OneStrand(OfGateways):
    """The rule of gateways, with one name for all tasks."""

    def arrived(self, number: int, now_ns: int) -> ChosenObjective:
        chosen = super().arrived(number, now_ns)
        named = chosen.extensions.task_id is not None
        return replace(chosen, extensions=replace(chosen.extensions, task_id="one")) if named else chosen


def test_a_home_with_a_backlog_leaves_no_other_instance_idle() -> None:
    crowded = replace(scenario_of("strands", 2, Size(tasks=60, tasks_per_s=50.0)), call_objectives=OneStrand)
    result = run(crowded, policy="qlm")
    shares = np.bincount(result.outcomes.instance) / len(result.workload)
    assert shares.min() > 0.25
    beside_s = [each.ns[GpuUse.IDLE_AWAKE] / 1e9 for each in result.gpu_times]
    assert max(beside_s) < 1.0


def outcomes_of(result: SimulationResult) -> tuple[object, ...]:
    times = result.outcomes
    return times.first_token_ns.tolist(), times.ended_ns.tolist(), times.instance.tolist(), result.events


def test_drawn_tasks_are_as_described() -> None:
    work = draw(Size(tasks=200, tasks_per_s=1.0), Seeds(5))
    tasks = work.tasks
    assert tasks is not None
    first = np.diff(tasks.task, prepend=-1) > 0
    calls = np.bincount(tasks.task)
    assert CALLS[0] == calls.min() and calls.max() <= CALLS[1]
    assert np.all(tasks.pause_ns[first] == 0)
    assert tasks.pause_ns.max() <= PAUSE_MAX_S * 1e9
    assert np.all(np.diff(work.prompt_tokens)[~first[1:]] >= 0), "prompts grow within a task"
    assert np.all(tasks.deadline_ns > work.arrival_ns)
    assert tasks.calls_left()[first].tolist() == calls.tolist()


def columns(**changes: np.ndarray) -> Callable[[], TaskCalls]:
    given = {"task": np.array([0, 0, 1]), "pause_ns": np.zeros(3, int), "deadline_ns": np.ones(3, int)}
    return lambda: TaskCalls(**(given | changes))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (columns(task=np.array([1, 0, 0])), "tasks.task"),
        (columns(pause_ns=np.array([0, -1, 0])), "tasks.pause_ns"),
        (columns(deadline_ns=np.ones(2, int)), "tasks.deadline_ns"),
    ],
)
def test_wrong_tasks_are_refused_by_name(make: Callable[[], TaskCalls], named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        make()


def test_the_first_requests_keep_their_tasks() -> None:
    tasks = columns()()
    assert tasks.first(2).task.tolist() == [0, 0]
    assert tasks.calls_left().tolist() == [2, 1, 1]
