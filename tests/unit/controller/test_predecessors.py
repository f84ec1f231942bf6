"""What an agent holds beyond its batch, as far as it goes before the request that is queued_cls about."""

from dataclasses import replace

import pytest

from qlm.controller.core.estimating.forecast import ForecastQuery, forecast
from qlm.controller.core.estimating.predecessors import predecessors_work, remaining_staged
from qlm.controller.core.estimating.snapshot import Snapshot
from qlm.domain.fleet import StagedWork
from qlm.domain.group import RequestClass
from qlm.rct_estimator.normal import Normal
from support.estimating import (
    BATCH,
    CHAT,
    KIND,
    LENGTHS,
    M,
    class_view,
    cluster,
    first_snapshot,
    groups_of,
    instance,
    steady_fleet,
)

PLACES = 16


def holding(*staged: StagedWork, unclassified: int = 0) -> Snapshot:
    """A full batch, what its agent holds beyond it, and a chat group on the queue."""
    group = groups_of(CHAT, 1)
    parked = unclassified + sum(each.fresh + each.evicted for each in staged)
    status = replace(instance(running=PLACES, parked=parked), staged=staged)
    classes = [class_view(CHAT, LENGTHS, *group), class_view(BATCH, LENGTHS)]
    view = cluster(*classes, instances=(status,), queues={"gpu-0": group})
    fleet = steady_fleet(PLACES)
    return first_snapshot(view, fleet)


def work(now: Snapshot, queued_cls: RequestClass | None) -> Normal:
    (only,) = now.instances.values()
    return predecessors_work(only.staged, only.unclassified, M, KIND, now.state, queued=queued_cls)


def each_s(now: Snapshot) -> float:
    return now.state.times.entries[CHAT, KIND].times.request_s


def test_fresh_requests_go_before_more_urgent_ones_that_wait() -> None:
    now = holding(StagedWork(cls=BATCH, fresh=6), StagedWork(cls=CHAT, fresh=2))
    assert work(now, CHAT).mean == pytest.approx(8 * each_s(now))
    assert work(now, CHAT).var > 0
    assert work(now, CHAT) == work(now, BATCH) == work(now, None)


def test_evicted_requests_let_more_urgent_ones_pass_and_all_behind_them() -> None:
    now = holding(StagedWork(cls=BATCH, fresh=6, evicted=1, evicted_tokens=50), StagedWork(cls=CHAT, fresh=2))
    assert work(now, CHAT).mean == pytest.approx(2 * each_s(now))
    assert work(now, BATCH).mean == pytest.approx(9 * each_s(now))


def test_evicted_requests_that_are_as_urgent_go_first() -> None:
    now = holding(StagedWork(cls=CHAT, evicted=3))
    assert work(now, CHAT).mean == pytest.approx(3 * each_s(now))


def test_unclassified_requests_are_of_any_class() -> None:
    reported, unclassified = holding(StagedWork(cls=BATCH, fresh=6)), holding(unclassified=6)
    assert [each.unclassified for each in unclassified.instances.values()] == [6]
    assert work(unclassified, None).mean == pytest.approx(work(reported, None).mean, rel=0.01)
    assert work(unclassified, CHAT).mean < work(unclassified, BATCH).mean


def test_those_that_got_a_place_meanwhile_were_the_most_urgent() -> None:
    staged = (StagedWork(cls=BATCH, fresh=2), StagedWork(cls=CHAT, fresh=1, evicted=2, evicted_tokens=100))
    assert remaining_staged(staged, 0)[0].cls == CHAT
    assert remaining_staged(staged, 1)[0] == StagedWork(cls=CHAT, fresh=1, evicted=1, evicted_tokens=50)
    assert remaining_staged(staged, 4) == (StagedWork(cls=BATCH, fresh=1),)
    assert remaining_staged(staged, 9) == ()


def test_a_forecast_waits_for_what_goes_first() -> None:
    blocked = forecast(holding(StagedWork(cls=BATCH, fresh=10)), ForecastQuery(cls=CHAT, rank=0))
    passing = forecast(holding(StagedWork(cls=BATCH, fresh=9, evicted=1)), ForecastQuery(cls=CHAT, rank=0))
    assert blocked is not None
    assert passing is not None
    now = holding()
    assert blocked.wait.mean - passing.wait.mean == pytest.approx(10 * each_s(now), rel=0.01)
