"""Core with explicit times: retention of results, and stale entries."""

from dataclasses import replace
from typing import Any

import pytest

from contract.suites.store.values import ARRIVAL_NS, A, metadata
from qlm.domain.fleet import EngineState, InstanceStatus, OpenAnswers, ServedWork, StagedWork
from qlm.domain.group import RequestClass
from qlm.domain.ids import GatewayId, ModelId
from qlm.domain.lease_answer import Granted
from qlm.domain.operations import OperationStats
from qlm.domain.outcome import Outcome
from qlm.domain.slo import DeadlineSlo
from qlm.store.core import leases, plans, requests
from qlm.store.core.instances import is_steady, steady
from qlm.store.core.limits import StoreLimits
from qlm.store.core.state import State

SECOND_NS = 1_000_000_000
M7 = ModelId("m7")


def test_results_are_kept_for_their_time_and_no_longer() -> None:
    state = State(1, StoreLimits(result_ttl_s=10.0))
    for n in (1, 2, 3):
        requests.enqueue(state, metadata(n), None, ARRIVAL_NS)
    requests.cancel(state, metadata(1).id, Outcome.CANCELLED, ARRIVAL_NS)
    _, effects = requests.cancel(state, metadata(2).id, Outcome.CANCELLED, ARRIVAL_NS + 10 * SECOND_NS - 1)
    assert effects.dropped == []
    _, effects = requests.expire(state, ARRIVAL_NS + 10 * SECOND_NS)
    assert effects.dropped == [metadata(1).id]
    assert requests.record(state, metadata(1).id) is None
    assert requests.record(state, metadata(2).id) is not None
    requests.expire(state, ARRIVAL_NS + 1000 * SECOND_NS)
    assert requests.record(state, metadata(2).id) is None
    assert requests.record(state, metadata(3).id) is not None


def test_a_class_is_forgotten_when_idle_for_as_long_as_results_live() -> None:
    state = State(1, StoreLimits(result_ttl_s=10.0))
    requests.enqueue(state, metadata(1), None, ARRIVAL_NS)
    granted, _ = leases.lease(state, metadata(1), A, None, ARRIVAL_NS)
    assert isinstance(granted, Granted)
    assert plans.view(state, ARRIVAL_NS).classes == ()
    assert plans.view(state, ARRIVAL_NS + 10 * SECOND_NS - 1).classes == ()
    assert list(state.classes.rows) == [metadata(1).cls]
    plans.view(state, ARRIVAL_NS + 10 * SECOND_NS)
    assert not (state.classes.rows or state.classes.active or state.classes.idle_since_ns)
    later_ns = ARRIVAL_NS + 11 * SECOND_NS
    assert leases.release(state, metadata(1).id, granted.lease.epoch, "", later_ns)[0]
    assert [each.queued for each in plans.view(state, later_ns).classes] == [1], "its request waits again"


def test_a_request_that_reuses_an_id_does_not_inherit_its_deadline() -> None:
    state = State(1, StoreLimits(results_max=1))
    requests.enqueue(state, metadata(1, drop=True), None, ARRIVAL_NS)
    for n in (1, 2):
        requests.enqueue(state, metadata(n), None, ARRIVAL_NS)
        requests.cancel(state, metadata(n).id, Outcome.CANCELLED, ARRIVAL_NS)
    later = replace(metadata(1, drop=True), slo=DeadlineSlo(deadline_ms=60_000.0))
    assert requests.enqueue(state, later, None, ARRIVAL_NS)[0].created
    assert requests.expire(state, metadata(1, drop=True).drop_at_ns or 0)[0] == []
    assert requests.expire(state, later.drop_at_ns or 0)[0] == [later.id]


def test_indexing_is_enqueueing_without_the_record() -> None:
    full, silent = State(1), State(1)
    for n in (1, 2, 1):
        enqueued, effects = requests.enqueue(full, metadata(n), GatewayId("g"), SECOND_NS)
        assert requests.index(silent, metadata(n), GatewayId("g"), SECOND_NS) == (enqueued.created, effects)
        assert requests.record(silent, metadata(n).id) == enqueued.record


@pytest.mark.parametrize(
    "change",
    [
        {},
        *({name: 7} for name in ("running", "parked", "kv_used_tokens")),
        {"work": ServedWork(ended=7)},
        {"operations": OperationStats(ended=7)},
        {"answers": (OpenAnswers(cls=RequestClass(M7, "batch"), counts=((7, 1, 7),)),)},
        {"staged": (StagedWork(cls=RequestClass(M7, "batch"), fresh=7),)},
        {"active_model": M7},
        {"draining": True},
        {"error": "it died"},
        {"engines": ((M7, EngineState.AWAKE),)},
    ],
)
def test_two_heartbeats_are_steady_if_they_differ_in_gauges_only(change: dict[str, Any]) -> None:
    before = InstanceStatus(holder=A, accelerator="A10", models=(M7,))
    now = replace(before, **change)
    assert is_steady(before, now) == (steady(before) == steady(now))
    gauges = {"running", "parked", "staged", "answers", "kv_used_tokens", "work", "operations"}
    assert is_steady(before, now) == (change.keys() <= gauges)
