"""Arrivals of more urgent classes: counted, and what they do to a wait."""

import math
from dataclasses import replace

import numpy as np
import pytest

from qlm.controller.core.estimating.arrivals import HORIZON_S, READ_EVERY_S, Arrivals, update_arrivals
from qlm.controller.core.estimating.forecast import ForecastQuery, forecast
from qlm.controller.core.estimating.instances import REPEATS_HORIZON_S, Repeats
from qlm.controller.core.estimating.overtaking import expected_arrivals, overtakers, with_overtaking
from qlm.controller.core.estimating.queues import estimates
from qlm.controller.core.estimating.snapshot import Snapshot
from qlm.domain.fleet import ServedWork
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId
from qlm.rct_estimator.cluster.overtaking import PREEMPTIONS, Overtaking
from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.normal import Normal
from support.batch_slots import draw
from support.estimating import (
    BATCH,
    CHAT,
    LENGTHS,
    NOW_NS,
    S,
    class_view,
    cluster,
    first_snapshot,
    groups_of,
    instance,
    steady_fleet,
)

PLACES = 16
ONLY = InstanceId("gpu-0")
URGENT = replace(CHAT, priority=-1)


def having(rates: dict[RequestClass, float], cls: RequestClass = BATCH) -> Snapshot:
    """A full batch, 32 waiting requests of a class, and others that arrive so fast."""
    groups = groups_of(cls, 32)
    classes = [class_view(cls, LENGTHS, *groups)]
    classes += [class_view(each, LENGTHS) for each in rates if each != cls]
    view = cluster(*classes, instances=(instance(running=PLACES),), queues={"gpu-0": groups})
    now = first_snapshot(view, steady_fleet(PLACES))
    known = {each: Arrivals(NOW_NS, 0, rate * 1000, 1000.0) for each, rate in rates.items()}
    return replace(now, state=replace(now.state, arrivals=known))


def rate_of(share: float) -> float:
    """Arrivals per second that take such a share of the instance."""
    return share / float(overtakers(having({CHAT: 1.0 / 1000})).share.sum()) / 1000


def longer(now: Snapshot, wait: Normal, cls: RequestClass, deadline_s: float) -> Normal:
    return with_overtaking(wait, now, now.instances[ONLY], cls, deadline_s)


def test_arrivals_are_counted_with_a_horizon() -> None:
    known = Arrivals(0, 100)
    assert known.seen(500, round(READ_EVERY_S * 0.9 * S), 500) is known
    assert known.rate_rps == 0
    for second in range(10, 1000, 10):
        known = known.seen(100 + 3 * second, second * S, 0)
    assert known.rate_rps == pytest.approx(3.0)
    for second in range(1000, 1000 + round(3 * HORIZON_S), 10):
        known = known.seen(100 + 2970, second * S, 0)
    assert known.rate_rps < 0.3


def test_a_burst_that_waits_is_no_rate() -> None:
    quiet = cluster(class_view(BATCH, LENGTHS), instances=(), queues={})
    burst = cluster(class_view(BATCH, LENGTHS, ungrouped=2000), instances=(), queues={})
    first = update_arrivals(quiet, NOW_NS, {})
    assert update_arrivals(quiet, NOW_NS, first) is first
    assert update_arrivals(burst, NOW_NS + 20 * S, first)[BATCH].rate_rps == 0


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


def test_a_wait_that_is_overtaken_varies_as_a_busy_period_does() -> None:
    rng, share, wait_s = np.random.default_rng(9), 0.4, 60.0
    now = having({CHAT: rate_of(share)})
    sure = replace(now.instances[ONLY], correction=Correction(log_var=1e-9))
    found = with_overtaking(Normal(wait_s, 9.0), now, sure, BATCH, np.inf)
    (each,) = expected_arrivals(now, sure)
    lengths = draw(np.random.default_rng(5), 2000)
    ends = np.empty(4000)
    for run in range(len(ends)):
        left = at = max(0.1, wait_s + 3.0 * rng.normal())
        # All the work that comes until it has its place: that which comes during the work before, and so on.
        while left > 0:
            came = rng.choice(lengths, rng.poisson(share / each.request_s * left)) / lengths.mean()
            left = float(came.sum()) * each.request_s
            at += left
        ends[run] = at
    common = (each.uncertainty * share * found.mean / (1 - share)) ** 2
    assert found.mean == pytest.approx(ends.mean(), rel=0.02)
    assert found.var - common == pytest.approx(ends.var(), rel=0.15)


def test_dispersed_counts_make_the_rate_uncertain() -> None:
    rng = np.random.default_rng(11)
    steady, bursty = Arrivals(0, 1), Arrivals(0, 1)
    totals = np.ones(2, dtype=int)
    for reading in range(1, 400):
        totals += rng.poisson(20), 10 * rng.poisson(2)
        steady, bursty = (
            each.seen(int(total), 10 * S * reading, int(total))
            for each, total in zip((steady, bursty), totals, strict=True)
        )
    assert steady.rate_rps == pytest.approx(2.0, rel=0.2)
    assert steady.dispersion == pytest.approx(1.0, abs=0.5)
    assert bursty.dispersion == pytest.approx(10.0, rel=0.5)
    assert bursty.uncertainty > 2 * steady.uncertainty


def test_ends_in_bunches_do_not_disperse_arrivals() -> None:
    rng = np.random.default_rng(11)
    known, total = Arrivals(0, 1), 1
    for reading in range(1, 400):
        total += int(rng.poisson(20))
        known = known.seen(1 + total // 100 * 100, 10 * S * reading, total)
    assert known.rate_rps == pytest.approx(2.0, rel=0.2)
    assert known.dispersion == pytest.approx(1.0, abs=0.5)


def test_the_time_before_anything_ended_is_no_sign_of_a_low_rate() -> None:
    known = Arrivals(0, 0)
    for second in range(10, 310, 10):
        known = known.seen(max(0, 2 * (second - 200)), second * S, 2 * second)
    assert known.rate_rps == pytest.approx(2.0, rel=0.05)


def test_a_class_of_which_nothing_waits_is_remembered_for_a_while() -> None:
    class_of = {cls: replace(class_view(cls, LENGTHS), finished=100) for cls in (CHAT, BATCH)}
    both = cluster(*class_of.values(), instances=(), queues={})
    without = cluster(class_of[BATCH], instances=(), queues={})
    known = update_arrivals(both, NOW_NS, {})
    later = cluster(*(replace(each, finished=160) for each in class_of.values()), instances=(), queues={})
    known = update_arrivals(later, NOW_NS + 20 * S, known)
    rate_rps = known[CHAT].rate_rps
    assert rate_rps == pytest.approx(3.0)
    for second in range(21, 60):
        known = update_arrivals(without, NOW_NS + second * S, known)
    assert 0 < known[CHAT].rate_rps < rate_rps
    back = cluster(replace(class_of[CHAT], finished=280), instances=(), queues={})
    assert update_arrivals(back, NOW_NS + 60 * S, known)[CHAT].rate_rps == pytest.approx(3.0, rel=0.1)
    for hour in range(1, 3):
        known = update_arrivals(without, NOW_NS + hour * 3600 * S, known)
    assert CHAT not in known


def test_a_forecast_looks_ahead() -> None:
    alone, busy = having({}), having({CHAT: rate_of(0.5)})
    found = [forecast(each, ForecastQuery(cls=BATCH, rank=20)) for each in (alone, busy)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[1].wait.mean == pytest.approx(2 * found[0].wait.mean, rel=0.1)


def wait_after(repeats: Repeats) -> Normal:
    """A wait overtaken once per second by a request whose prompt costs as much as the rest of it."""
    one = np.ones((1, 1))
    overtaking = Overtaking(
        window_s=np.inf * one, share=0.4 * one, rate_rps=one, work_dispersion_s=0.0 * one, share_cv2=0.0 * one
    )
    each = [np.array([x]) for x in (0.4, 500.0, repeats.tokens, repeats.busy_s)]
    mean_s, var = overtaking.with_preemptions(*each).lengthen(np.array([60.0]), np.array([0.0]))
    return Normal(float(mean_s[0]), float(var[0]))


def test_evictions_are_learned_from_prompts_that_were_computed_again() -> None:
    assumed = wait_after(Repeats())
    assert assumed.mean == pytest.approx(60 / (1 - 0.4 * (1 + PREEMPTIONS.mean)))
    uncertainty_s = 0.4 * math.sqrt(PREEMPTIONS.var) * assumed.mean
    assert assumed.var == pytest.approx((uncertainty_s * assumed.mean / 60) ** 2)
    seen = wait_after(Repeats(tokens=500.0 * 300, busy_s=500.0))
    assert seen.mean == pytest.approx(60 / (1 - 0.4 * 1.6), rel=0.06), "300 evictions for 500 that overtook"
    none = wait_after(Repeats(busy_s=500.0))
    assert none.mean == pytest.approx(60 / 0.6, rel=0.02)
    assert none.var < 0.2 * assumed.var


def test_groups_wait_as_long_as_their_requests() -> None:
    """Classes of all kinds of urgency: queues as arrays say what is said of one request."""
    late = RequestClass(CHAT.model, "deadline-64s", target_ms=50_000.0)
    rates = {CHAT: rate_of(0.2), URGENT: rate_of(0.1), late: rate_of(0.3), BATCH: rate_of(0.1)}
    for cls in (*rates, RequestClass(CHAT.model, "batch", priority=1)):
        now = having(rates, cls)
        still = estimates(replace(now, state=replace(now.state, arrivals={})))
        (group,) = still.groups
        before, after = still.of(group), estimates(now).of(group)
        assert before is not None
        assert after is not None
        deadline_s = np.inf if cls.target_ms is None else cls.target_ms / 1000
        for plain_s, found in ((before.first_s, after.first_s), (before.last_s, after.last_s)):
            assert found == pytest.approx(longer(now, Normal(plain_s), cls, deadline_s).mean)
        assert (after.completion.var > before.completion.var) == (after.last_s > before.last_s)
        assert after.met <= before.met + 1e-9


def test_what_was_computed_again_long_ago_is_forgotten() -> None:
    known = Repeats().after(ServedWork(busy_s=50.0, repeated_tokens=1000))
    assert (known.tokens, known.busy_s) == (1000, 50.0)
    for _ in range(20):
        known = known.after(ServedWork(busy_s=100.0))
    assert known.tokens < 2
    assert known.busy_s == pytest.approx(REPEATS_HORIZON_S, rel=0.2)
