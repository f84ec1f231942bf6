"""All policies: each serves everything, the same way each time, and does what it is called."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.domain.ids import ModelId
from qlm.domain.slo import DeadlineSlo
from qlm.simulator.policies import POLICIES
from qlm.simulator.report import requests_csv
from qlm.simulator.scenario import SloClass, Workload
from qlm.simulator.seeds import Seeds
from support.simulation import BATCH, LARGE, REPORT, SMALL, run, scenario, workload


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_answered_and_equal_seeds_give_equal_bytes(policy: str) -> None:
    subject = scenario(workload(150, rate_rps=40.0, models=2), models=(SMALL, LARGE))
    result = run(subject, policy=policy, seed=3)
    assert set(result.outcomes.outcome) <= {"stop", "length"}
    assert requests_csv(run(subject, policy=policy, seed=3)) == requests_csv(result)
    assert result.policy == policy


def test_names_are_those_of_the_plans_and_those_that_look_at_deadlines_evict() -> None:
    assert [name for name, policy in POLICIES.items() if policy.evicts] == ["edf", "qlm"]
    assert all(name == policy.name and policy.about for name, policy in POLICIES.items())


def test_only_priority_fcfs_keeps_arrival_classes_of_different_priorities_apart() -> None:
    model, slo = ModelId("m"), DeadlineSlo(deadline_ms=1000)
    for name, policy in POLICIES.items():
        cls = policy.classify(model, slo, 1)
        by_arrival = name in {"fcfs", "priority-fcfs", "round-robin", "most-memory", "random"}
        assert cls.target_ms == (0.0 if by_arrival else 1000.0)
        assert cls.priority == (0 if by_arrival and name != "priority-fcfs" else 1)


def test_priorities_go_first_under_priority_fcfs_only() -> None:
    def make(seeds: Seeds) -> Workload:
        """A backlog of common requests, and then some of a higher priority."""
        base = workload(300, rate_rps=300.0, output_tokens=300.0)(seeds)
        return replace(base, slo_class=np.where(np.arange(300) >= 260, 0, 2))

    first = SloClass(name="first", slo=BATCH.slo, priority=-1)
    subject = replace(scenario(make, instances=1), slo_classes=(first, REPORT, BATCH))
    with_it, without = run(subject, policy="priority-fcfs"), run(subject, policy="fcfs")
    ended = [result.outcomes.ended_ns[260:].mean() for result in (with_it, without)]
    assert ended[0] < ended[1]


def test_other_seeds_place_otherwise_at_random() -> None:
    subject = scenario(workload(200, rate_rps=200.0, output_tokens=300.0), instances=3)
    fixed = replace(subject, make_workload=lambda seeds: subject.make_workload(Seeds(1)))
    one, other = (run(fixed, policy="random", seed=seed).outcomes.instance for seed in (1, 2))
    assert not np.array_equal(one, other)
    assert set(one.tolist()) == {0, 1, 2}
