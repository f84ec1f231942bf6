"""Plans that miss something are audited beside a controller's work."""

import asyncio
import contextlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from qlm.cli.plans import audit
from qlm.cli.plans.audit import AuditFailedError, PlanAuditor, audit_beside, misses, priced
from qlm.cli.runtime.plan_generator import PlanGenerator
from qlm.controller.core.decide import Decision
from qlm.controller.core.estimating.state import NOTHING_LEARNED
from qlm.controller.shell.metrics import ControllerMetrics, Turn
from qlm.domain.errors import InvalidValueError
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.shell.faults import FaultKind, FaultLog
from qlm.domain.shell.tasks import end_tasks
from qlm.domain.view import ClusterView
from qlm.planner.audit import Audit, audit_from_plain
from qlm.planner.baselines.edf import plan_edf
from qlm.planner.problem import GroupTime, Instance, Kind, ModelCost, Plan, PlannedGroup, Problem, ScaleUp
from qlm.planner.verify.referee import judged
from qlm.rct_estimator.normal import Normal
from support.estimating import instance
from support.exposition import value
from support.gateway import until

KIND = "A10[m]"
VIEW = ClusterView(classes=(), instances=(), queues=())


def decision(groups: int) -> Decision:
    """Groups that take ten seconds each, all due after twelve, for one instance."""
    model = ModelId("m")
    cost = ModelCost(weights_bytes=1, swap_warm_s=0.1, swap_cold_s=0.1)
    time = GroupTime(service=Normal(10.0, 0.1), tail=Normal(0.5, 0.01))
    problem = Problem(
        now_s=1000.0,
        kinds={KIND: Kind(host_memory_bytes=1, models={model: cost})},
        instances=(Instance(id=InstanceId("i"), kind=KIND, loaded_model=model),),
        groups=tuple(
            PlannedGroup(id=GroupId(f"g{n}"), model=model, requests=8, deadline_s=1012.0, time={KIND: time})
            for n in range(groups)
        ),
    )
    return Decision(problem=problem, plan=judged(problem, plan_edf(problem)), estimator=NOTHING_LEARNED)


@pytest.fixture
def metrics() -> ControllerMetrics:
    return ControllerMetrics(CollectorRegistry(), lambda: 0)


@pytest.fixture
def generator(tmp_path: Path) -> PlanGenerator:
    """As it is once its code is compiled."""
    generator = PlanGenerator(tmp_path)
    generator.ready = True
    return generator


def printed(metrics: ControllerMetrics, name: str) -> float:
    registry = CollectorRegistry()
    registry.register(metrics)
    return value(generate_latest(registry).decode(), name)


def test_only_a_plan_that_costs_a_miss_is_audited() -> None:
    assert misses(decision(4)) and not misses(decision(1))
    unpriced = replace(decision(4), plan=Plan(queues={InstanceId("i"): ()}))
    assert priced(decision(1)) and not priced(unpriced)


async def test_an_audit_tells_what_is_missed_and_how_many_instances_would_repair_it(
    metrics: ControllerMetrics, generator: PlanGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "LOOK_S", 0.02)
    monkeypatch.setattr(audit, "EVERY_S", 0.04)
    metrics.planned(VIEW, decision(4), took_s=0.1)
    auditing = asyncio.create_task(PlanAuditor(metrics, generator, FaultLog()).run())
    await until(lambda: printed(metrics, "qlm_controller_plan_late_requests") > 0, timeout_s=60)
    # Of four groups one is in time alone; the other three need an instance each.
    assert printed(metrics, "qlm_controller_recommended_instances") == 3
    assert printed(metrics, "qlm_controller_plan_late_requests") == pytest.approx(24, abs=2)
    assert 0 <= printed(metrics, "qlm_controller_plan_gap_ratio") <= 1
    metrics.planned(VIEW, decision(1), took_s=0.1)
    await until(lambda: printed(metrics, "qlm_controller_plan_late_requests") == 0, timeout_s=60)
    assert printed(metrics, "qlm_controller_recommended_instances") == 0
    auditing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await auditing


def test_instances_that_join_after_an_audit_are_some_of_those_that_it_misses(
    metrics: ControllerMetrics,
) -> None:
    def live(count: int) -> Turn:
        fleet = tuple(replace(instance(f"i{at}"), accelerator="A10") for at in range(count))
        metrics.planned(replace(VIEW, instances=fleet), decision(4), took_s=0.1)
        assert metrics.turn is not None
        return metrics.turn

    missing = Audit(
        late_requests=24.0, penalty_s=9.0, lower_bound_s=3.0, scale_up=(ScaleUp(kind=KIND, count=2),)
    )
    turn = live(1)
    live(2)  # another one had joined before the audit of the first turn ended
    metrics.audited(turn, missing)
    recommended = []
    for count in (2, 3, 4, 1):
        live(count)
        recommended.append(printed(metrics, "qlm_controller_recommended_instances"))
    assert recommended == [3, 3, 4, 3]


async def test_the_last_audit_stands_when_one_fails(
    metrics: ControllerMetrics, generator: PlanGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def once(*_: object) -> Audit:
        nonlocal tries
        tries += 1
        if tries > 1:
            raise AuditFailedError
        return Audit(late_requests=24.0, penalty_s=9.0, lower_bound_s=3.0)

    monkeypatch.setattr(audit, "LOOK_S", 0.001)
    monkeypatch.setattr(audit, "EVERY_S", 0.002)
    monkeypatch.setattr(audit, "audit_beside", once)
    metrics.planned(VIEW, decision(4), took_s=0.1)
    auditing = asyncio.create_task(PlanAuditor(metrics, generator, FaultLog()).run())
    await until(lambda: tries > 3 or auditing.done())
    assert printed(metrics, "qlm_controller_plan_late_requests") == 24
    await end_tasks([auditing])


async def test_a_bug_in_an_audit_costs_that_audit(
    metrics: ControllerMetrics, generator: PlanGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    audited, counted = 0, list[FaultKind]()

    async def fail(*_: object) -> None:
        nonlocal audited
        audited += 1
        raise ZeroDivisionError

    monkeypatch.setattr(audit, "LOOK_S", 0.001)
    monkeypatch.setattr(audit, "EVERY_S", 0.002)
    monkeypatch.setattr(audit, "audit_beside", fail)
    metrics.planned(VIEW, decision(4), took_s=0.1)
    auditing = asyncio.create_task(PlanAuditor(metrics, generator, FaultLog(counted.append)).run())
    await until(lambda: audited > 2 or auditing.done())
    await end_tasks([auditing])
    assert audited > 2
    assert set(counted) == {FaultKind.BUG}


async def test_an_audit_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "AUDIT_MAX_S", 0.01)
    with pytest.raises(AuditFailedError, match=r"longer than 0\.01 s"):
        await audit_beside(decision(4), None)


async def test_an_audit_that_fails_says_why() -> None:
    broken = replace(decision(4), plan=Plan(queues={InstanceId("elsewhere"): ()}))
    with pytest.raises(AuditFailedError, match="elsewhere"):
        await audit_beside(broken, None)


async def test_an_audit_that_says_something_else_has_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chatter = tmp_path / "python"
    chatter.write_text("#!/bin/sh\ncat > /dev/null\necho a warning\n")
    chatter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(chatter))
    with pytest.raises(AuditFailedError, match="a warning"):
        await audit_beside(decision(4), None)


def test_what_is_no_audit_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="late_requests"):
        audit_from_plain({"scale_up": {}})
