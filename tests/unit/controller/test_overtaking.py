"""Arrivals of more urgent classes: counted, and what they do to a wait."""

from dataclasses import replace

import numpy as np
import pytest

from qlm.controller.estimating.arrivals import HORIZON_S, READ_EVERY_S, Arrivals, arrivals
from qlm.controller.estimating.forecast import Asked, forecast
from qlm.controller.estimating.moment import Moment, moment
from qlm.controller.estimating.overtaking import offered, with_overtaking
from qlm.controller.estimating.state import NOTHING_LEARNED, learned
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId
from qlm.rct_estimator.normal import Normal
from support.estimating import (
    BATCH,
    CHAT,
    NOW_NS,
    S,
    class_view,
    cluster,
    counted,
    groups_of,
    instance,
    steady_fleet,
)
from support.places import draw

PLACES = 16
ONLY = InstanceId("gpu-0")
LENGTHS = counted(draw(np.random.default_rng(5), 2000))
URGENT = replace(CHAT, priority=-1)


def having(rates: dict[RequestClass, float], cls: RequestClass = BATCH) -> Moment:
    """A full batch, 32 waiting requests of a class, and others that arrive so fast."""
    groups = groups_of(cls, 32)
    classes = [class_view(cls, LENGTHS, *groups)]
    classes += [class_view(each, LENGTHS) for each in rates if each != cls]
    view = cluster(*classes, instances=(instance(running=PLACES),), queues={"gpu-0": groups})
    fleet = steady_fleet(PLACES)
    state = learned(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)
    known = {each: Arrivals(NOW_NS, 0, rate * 1000, 1000.0) for each, rate in rates.items()}
    return moment(view, now_ns=NOW_NS, fleet=fleet, state=replace(state, arrivals=known))


def rate_of(share: float) -> float:
    """Arrivals per second that take such a share of the instance."""
    return share / offered(having({CHAT: 1.0 / 1000}), having({}).instances[ONLY]) / 1000


def longer(now: Moment, wait: Normal, cls: RequestClass, deadline_s: float) -> Normal:
    return with_overtaking(wait, now, now.instances[ONLY], cls, deadline_s)


def test_arrivals_are_counted_with_a_horizon() -> None:
    known = Arrivals(0, 100)
    assert known.seen(500, round(READ_EVERY_S * 0.9 * S)) is known
    assert known.rate_rps == 0
    for second in range(10, 1000, 10):
        known = known.seen(100 + 3 * second, second * S)
    assert known.rate_rps == pytest.approx(3.0)
    for second in range(1000, 1000 + round(3 * HORIZON_S), 10):
        known = known.seen(100 + 2970, second * S)
    assert known.rate_rps < 0.3


def test_a_burst_that_waits_is_no_rate() -> None:
    quiet = cluster(class_view(BATCH, LENGTHS), instances=(), queues={})
    burst = cluster(class_view(BATCH, LENGTHS, ungrouped=2000), instances=(), queues={})
    first = arrivals(quiet, NOW_NS, {})
    assert arrivals(quiet, NOW_NS, first) is first
    assert arrivals(burst, NOW_NS + 20 * S, first)[BATCH].rate_rps == 0


def test_a_batch_request_is_overtaken_as_long_as_it_waits() -> None:
    wait = longer(having({CHAT: rate_of(0.4)}), Normal(60.0, 4.0), BATCH, np.inf)
    assert wait.mean == pytest.approx(60 / 0.6)
    assert wait.var > 4.0 / 0.6


def test_a_later_deadline_is_overtaken_until_new_deadlines_are_later_still() -> None:
    late = RequestClass(CHAT.model, "deadline-64s", target_ms=50_000.0)
    now = having({CHAT: rate_of(0.4)}, late)
    # Arrivals in the first 50 - 20 seconds have the earlier deadline.
    assert longer(now, Normal(60.0), late, 50.0).mean == pytest.approx(60 + 0.4 * 30)
    assert longer(now, Normal(6.0), late, 50.0).mean == pytest.approx(6 / 0.6)


def test_only_more_urgent_classes_overtake() -> None:
    wait = Normal(60.0, 4.0)
    same = having({CHAT: rate_of(0.4)}, CHAT)
    assert longer(same, wait, CHAT, 20.0) == wait
    assert longer(having({BATCH: rate_of(0.4)}, CHAT), wait, CHAT, 20.0) == wait
    assert longer(having({URGENT: rate_of(0.4)}, CHAT), wait, CHAT, 20.0).mean == pytest.approx(100.0)


def test_no_rate_makes_a_wait_endless() -> None:
    wait = longer(having({CHAT: rate_of(3.0)}), Normal(60.0, 4.0), BATCH, np.inf)
    assert wait.mean == pytest.approx(60 / 0.05)


def test_forecasts_are_of_a_priority_queue_with_arrivals() -> None:
    """A single server that takes more urgent arrivals first: the backlog ends as a busy period does."""
    rng, each_s, share = np.random.default_rng(8), 0.5, 0.4
    ends = []
    for _ in range(4000):
        left, at = 60.0, 0.0
        while left > 1e-9:
            gap = float(rng.exponential(each_s / share))
            at, left = at + min(gap, left), left - min(gap, left) + (each_s if gap < left else 0.0)
        ends.append(at)
    wait = longer(having({CHAT: rate_of(share)}), Normal(60.0), BATCH, np.inf)
    assert wait.mean == pytest.approx(float(np.mean(ends)), rel=0.02)


def test_a_forecast_looks_ahead() -> None:
    alone, busy = having({}), having({CHAT: rate_of(0.5)})
    told = [forecast(each, Asked(cls=BATCH, rank=20)) for each in (alone, busy)]
    assert told[0] is not None
    assert told[1] is not None
    assert told[1].wait.mean == pytest.approx(2 * told[0].wait.mean, rel=0.1)
