"""Readers in estimates: the batch that keeps up with them, and answers that fall behind."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.controller.core.admission_signal import admission_signal
from qlm.controller.core.decide import ControllerSettings, decide
from qlm.controller.core.estimating.classes import class_posterior
from qlm.controller.core.estimating.forecast import ForecastQuery, forecast
from qlm.controller.core.estimating.service_times import class_entry
from qlm.controller.core.estimating.snapshot import Snapshot
from qlm.controller.core.fleet import Fleet
from qlm.domain.group import RequestClass, request_class
from qlm.domain.ids import GroupId
from qlm.domain.slo import ReadingSlo
from qlm.planner.admission_signal import ClassForecast
from qlm.planner.baselines.edf import plan_edf
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.estimating import (
    BATCH,
    KIND,
    LENGTHS,
    NOW_NS,
    STREAM,
    M,
    class_view,
    cluster,
    first_snapshot,
    groups_of,
    instance,
    steady_fleet,
)

PLACES = 64
READERS = request_class(M, ReadingSlo(ttft_ms=1000.0, tokens_per_s=20.0), 0)


def growing_fleet(*, bounds_readers: bool = True) -> Fleet:
    """Iterations of 10 ms, and 1 ms more for each token: 20 tokens per second for a batch of about 37."""
    fleet = steady_fleet(PLACES)
    iteration = IterationTime(host_ms=0.0, linear_ms=((1.0, 11.0), (2001.0, 2011.0)), kv_ms=0.0)
    profiles = {key: replace(each, iteration=iteration) for key, each in fleet.profiles.items()}
    return replace(fleet, profiles=profiles, bounds_readers=bounds_readers)


def at(cls: RequestClass, fleet: Fleet, *, running: int = 0, waiting: int = 200) -> Snapshot:
    groups = groups_of(cls, waiting)
    view = cluster(
        class_view(cls, LENGTHS, *groups), instances=(instance(running=running),), queues={"gpu-0": groups}
    )
    return first_snapshot(view, fleet)


def test_the_pace_of_a_class_is_that_of_its_label_until_it_is_late() -> None:
    assert READERS.tokens_per_s == 20.0
    assert READERS.missed().tokens_per_s is None
    assert [each.tokens_per_s for each in (STREAM, BATCH)] == [None, None]


def test_a_batch_of_readers_is_as_large_as_keeps_up_with_them() -> None:
    entry = at(READERS, growing_fleet()).state.times.entries[READERS, KIND]
    assert 30 <= entry.times.batch <= 37
    assert entry.on_kind.state.iteration_s <= 0.05
    unbounded = at(READERS, growing_fleet(bounds_readers=False)).state.times.entries[READERS, KIND]
    assert unbounded.times.batch == pytest.approx(PLACES)


def test_readers_beyond_the_bound_wait() -> None:
    query = ForecastQuery(cls=READERS, rank=0)
    waits = {}
    for bounds in (True, False):
        found = forecast(at(READERS, growing_fleet(bounds_readers=bounds), running=40), query)
        assert found is not None
        waits[bounds] = found.wait.mean
    assert waits[True] > waits[False] + 0.05


def signalled(
    cls: RequestClass, *, running: int = 0, waiting: int = 0, bounds_readers: bool = True
) -> ClassForecast:
    """What gateways get of a class."""
    groups = groups_of(cls, waiting)
    view = cluster(
        class_view(cls, LENGTHS, *groups), instances=(instance(running=running),), queues={"gpu-0": groups}
    )
    decision = decide(
        view,
        now_ns=NOW_NS,
        fleet=growing_fleet(bounds_readers=bounds_readers),
        settings=ControllerSettings(),
        planner=plan_edf,
        new_id=lambda cls: GroupId("new"),
    )
    assert decision.snapshot is not None
    return admission_signal(decision.snapshot, decision.problem, decision.plan).classes[cls]


def test_the_signal_for_gateways_has_the_wait_behind_readers_beyond_the_bound() -> None:
    bounded, unbounded = (
        signalled(READERS, running=20, waiting=30, bounds_readers=bounds) for bounds in (True, False)
    )
    assert bounded.wait.mean > unbounded.wait.mean + 0.05
    assert bounded.token_s <= 0.05 < unbounded.token_s


@pytest.mark.parametrize("pace", [8.0, 20.0, 24.0, 29.0, 40.0])
def test_readers_with_whom_a_request_alone_keeps_up_are_admitted_to_an_idle_cluster(pace: float) -> None:
    """Alone an iteration takes 11 ms."""
    slo = ReadingSlo(ttft_ms=1000.0, tokens_per_s=pace)
    found = signalled(request_class(M, slo, 0))
    assert found.first_token.at_most(1.0) > 0.9
    assert found.alone_first_token.at_most(1.0) > 0.9


def test_a_pace_that_no_batch_keeps_is_refused_for_good() -> None:
    hasty = request_class(M, ReadingSlo(ttft_ms=1000.0, tokens_per_s=500.0), 0)
    found, unjudged = signalled(hasty), signalled(hasty, bounds_readers=False)
    assert found.first_token.at_most(1.0) < 0.5 < unjudged.first_token.at_most(1.0)
    assert found.alone_first_token.at_most(1.0) < 0.5, "no Retry-After"
    assert found.completion == unjudged.completion


def test_a_pace_that_no_batch_keeps_is_a_miss() -> None:
    hasty = request_class(M, ReadingSlo(ttft_ms=1000.0, tokens_per_s=500.0), 0)
    found = forecast(at(hasty, growing_fleet(), waiting=0), ForecastQuery(cls=hasty))
    unjudged = forecast(at(hasty, growing_fleet(bounds_readers=False), waiting=0), ForecastQuery(cls=hasty))
    assert found is not None
    assert unjudged is not None
    assert unjudged.met > 0.9
    assert found.met < 0.5
    assert found.first_token.wait == unjudged.first_token.wait


@pytest.mark.parametrize("cls", [STREAM, BATCH, READERS.missed()])
def test_without_readers_nothing_changes(cls: RequestClass) -> None:
    fleet = growing_fleet()
    posterior = class_posterior(class_view(cls, LENGTHS))
    bounded, unbounded = (
        class_entry(cls, posterior, fleet.profiles[M, KIND], bounds_readers=bounds)
        for bounds in (True, False)
    )
    assert bounded.on_kind.state == unbounded.on_kind.state
    assert bounded.response == unbounded.response
    assert np.array_equal(bounded.times.tails, unbounded.times.tails)
