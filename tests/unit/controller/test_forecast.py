"""Forecasts of single requests and of whole queues, against places that are taken and left."""

import math
from dataclasses import replace

import numpy as np
import pytest

from qlm.controller.core.estimating.forecast import TO_ENGINE_S, Forecast, ForecastQuery, forecast
from qlm.controller.core.estimating.queues import deadlines_s, estimates, last_arrivals_ns
from qlm.controller.core.estimating.snapshot import Snapshot, take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.domain.fleet import EngineState
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.length_histogram import LengthHistogram
from qlm.domain.view import ClusterView
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_slots import STEP_S, draw, serve
from support.estimating import (
    BATCH,
    CHAT,
    LENGTHS,
    NOW_NS,
    OTHER,
    STREAM,
    M,
    N,
    S,
    class_view,
    cluster,
    counted,
    first_snapshot,
    groups_of,
    instance,
    steady_fleet,
)

PLACES = 16


def counted_mean_s(lengths: LengthHistogram) -> float:
    return lengths.tokens / lengths.answers * STEP_S


MEAN_S = float(draw(np.random.default_rng(6), 100_000).mean()) * STEP_S


def at(view: ClusterView, *, now_ns: int = NOW_NS) -> Snapshot:
    fleet = steady_fleet(PLACES)
    return first_snapshot(view, fleet, now_ns=now_ns)


def behind_a_full_batch(*counts: int, cls: RequestClass = CHAT) -> Snapshot:
    groups = groups_of(cls, *counts)
    return at(
        cluster(
            class_view(cls, LENGTHS, *groups),
            instances=(instance(running=PLACES),),
            queues={"gpu-0": groups},
        )
    )


def of(snapshot: Snapshot, asked: ForecastQuery) -> Forecast:
    found = forecast(snapshot, asked)
    assert found is not None
    return found


def test_intervals_cover_what_happens_behind_a_full_batch() -> None:
    warm, ranks = 200, [0, 3, 15, 40, 99]
    lengths = draw(np.random.default_rng(7), 600, warm + 100)
    start_s, end_s = serve(lengths, PLACES)
    now = behind_a_full_batch(64, 36)
    covered = {"first": 0.0, "end": 0.0}
    for rank in ranks:
        expected = of(now, ForecastQuery(cls=CHAT, rank=rank))
        # Seen when the one before the first of them has just got its place.
        waited_s = start_s[:, warm + rank] - start_s[:, warm - 1]
        ended_s = end_s[:, warm + rank] - start_s[:, warm - 1]
        assert expected.wait.mean == pytest.approx(waited_s.mean(), rel=0.06, abs=0.6 * MEAN_S / PLACES)
        for name, time, actual_s in (
            ("first", expected.first_token, waited_s + STEP_S),
            ("end", expected.completion, ended_s),
        ):
            low, high = time.quantile(0.05), time.quantile(0.95)
            covered[name] += float(np.mean((actual_s >= low) & (actual_s <= high))) / len(ranks)
    assert 0.85 <= covered["end"] <= 0.95
    assert 0.85 <= covered["first"] <= 0.99, "few ends are spread wider than a normal distribution says"


def test_a_lone_request_on_an_idle_instance_waits_for_nobody() -> None:
    groups = groups_of(CHAT, 0)
    view = cluster(class_view(CHAT, LENGTHS, *groups), instances=(instance(),), queues={"gpu-0": groups})
    alone = of(at(view), ForecastQuery(cls=CHAT))
    assert alone.wait.mean == pytest.approx(TO_ENGINE_S)
    assert alone.completion.normal.mean == pytest.approx(MEAN_S, rel=0.05)


def test_a_queue_as_a_whole_and_its_requests_one_by_one_tell_the_same() -> None:
    now = behind_a_full_batch(40, 60)
    _, second = groups_of(CHAT, 40, 60)
    whole = estimates(now)
    seen = whole.of(second.id)
    assert seen is not None
    assert seen.last_s == pytest.approx(of(now, ForecastQuery(cls=CHAT, rank=99)).wait.mean, rel=0.01)
    assert seen.first_s == pytest.approx(of(now, ForecastQuery(cls=CHAT, rank=39)).wait.mean, rel=0.01)
    met = np.mean([of(now, ForecastQuery(cls=CHAT, rank=rank)).met for rank in range(40, 100)])
    assert seen.met == pytest.approx(met, abs=0.03)


def test_an_arriving_request_joins_the_open_group_and_waits_behind_all_of_it() -> None:
    now = behind_a_full_batch(40, 60)
    arriving, last = of(now, ForecastQuery(cls=CHAT)), of(now, ForecastQuery(cls=CHAT, rank=99))
    assert arriving.wait.mean == pytest.approx(last.wait.mean + MEAN_S / PLACES, rel=0.05)


def test_the_rank_decides_which_instance_is_expected() -> None:
    one, two = groups_of(CHAT, 10, 10, sealed=True)
    now = at(
        cluster(
            class_view(CHAT, LENGTHS, one, two),
            instances=(instance("gpu-0", running=PLACES), instance("gpu-1", running=PLACES)),
            queues={"gpu-0": (two,), "gpu-1": (one,)},
        )
    )
    early, late = of(now, ForecastQuery(cls=CHAT, rank=9)), of(now, ForecastQuery(cls=CHAT, rank=10))
    assert (early.instance, late.instance) == ("gpu-1", "gpu-0")
    assert late.wait.mean < early.wait.mean / 5


def test_without_a_group_the_instance_with_the_shortest_wait_is_expected() -> None:
    (long,) = groups_of(STREAM, 300, sealed=True)
    now = at(
        cluster(
            class_view(STREAM, LENGTHS, long),
            class_view(CHAT, LENGTHS, ungrouped=1),
            instances=(instance("gpu-0", running=PLACES), instance("gpu-1", running=PLACES)),
            queues={"gpu-0": (long,)},
        )
    )
    assert of(now, ForecastQuery(cls=CHAT, rank=0)).instance == "gpu-1"


def test_without_a_group_only_what_is_more_urgent_goes_before() -> None:
    (relaxed,), (tight,) = groups_of(BATCH, 300, sealed=True), groups_of(STREAM, 30, sealed=True)
    classes = (
        class_view(STREAM, LENGTHS, tight),
        class_view(BATCH, LENGTHS, relaxed),
        class_view(CHAT, LENGTHS),
    )
    full, wait_s = (instance(running=PLACES),), {}
    for name, order in {
        "both": (tight, relaxed),
        "tight": (tight,),
        "relaxed": (relaxed,),
        "none": (),
    }.items():
        now = at(cluster(*classes, instances=full, queues={"gpu-0": order}))
        wait_s[name] = of(now, ForecastQuery(cls=CHAT)).wait.mean
    assert wait_s["both"] == wait_s["tight"] == pytest.approx(31 * MEAN_S / PLACES, rel=0.05)
    assert wait_s["relaxed"] == wait_s["none"] < 2 * MEAN_S / PLACES


def test_an_unknown_class_gets_typical_lengths_and_an_unserved_model_nothing() -> None:
    now = at(cluster(instances=(instance(),), queues={}))
    expected = of(now, ForecastQuery(cls=CHAT, prompt_tokens=100, max_tokens=50))
    assert 0 < expected.completion.normal.mean <= 50 * STEP_S * 1.01
    assert forecast(now, ForecastQuery(cls=replace(CHAT, model=ModelId("served by no instance")))) is None
    broken = replace(instance(), active_model=None, engines=((M, EngineState.FAILED),))
    assert forecast(at(cluster(instances=(broken,), queues={})), ForecastQuery(cls=CHAT)) is None


def test_another_model_waits_until_the_batch_is_empty_and_the_model_loaded() -> None:
    (group,) = groups_of(OTHER, 5)
    view = cluster(
        class_view(OTHER, LENGTHS, group),
        class_view(CHAT, LENGTHS, *groups_of(CHAT, 0)),
        instances=(instance(running=PLACES),),
        queues={"gpu-0": (group,)},
    )
    cold = of(at(view), ForecastQuery(cls=OTHER, rank=0))
    asleep = replace(instance(running=PLACES), engines=((M, EngineState.AWAKE), (N, EngineState.ASLEEP)))
    warm = of(at(replace(view, instances=(asleep,))), ForecastQuery(cls=OTHER, rank=0))
    assert cold.wait.mean - warm.wait.mean == pytest.approx(28.0)
    assert warm.wait.mean > 3.0 + 2 * MEAN_S, "the longest of sixteen takes longer than the mean"
    seen = estimates(at(view)).of(group.id)
    assert seen is not None
    assert seen.first_s == pytest.approx(cold.wait.mean, rel=0.02)


def test_a_model_on_its_way_is_waited_for_no_longer_than_it_takes() -> None:
    (group,) = groups_of(CHAT, 3)
    starting = replace(instance(), active_model=None, engines=((M, EngineState.STARTING),))
    view = cluster(class_view(CHAT, LENGTHS, group), instances=(starting,), queues={"gpu-0": (group,)})
    fleet, asked = steady_fleet(PLACES), ForecastQuery(cls=CHAT, rank=0)
    state = learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)
    for passed_s, left_s in ((0, 30.0), (20, 10.0), (60, 3.0)):
        later_ns = NOW_NS + passed_s * S
        state = learn(state, view, now_ns=later_ns, fleet=fleet)
        now = take_snapshot(view, now_ns=later_ns, fleet=fleet, state=state)
        assert of(now, asked).wait.mean == pytest.approx(left_s, abs=0.1)


def test_parked_requests_go_first() -> None:
    (group,) = groups_of(CHAT, 5)
    view = cluster(
        class_view(CHAT, LENGTHS, group),
        instances=(instance(running=PLACES, parked=10),),
        queues={"gpu-0": (group,)},
    )
    parked = of(at(view), ForecastQuery(cls=CHAT, rank=0)).wait
    free = of(behind_a_full_batch(5), ForecastQuery(cls=CHAT, rank=0)).wait
    assert parked.mean - free.mean == pytest.approx(10 * MEAN_S / PLACES, rel=0.05)


def test_parked_requests_of_unknown_classes_make_a_wait_doubtful() -> None:
    """Long answers or short ones: all that an agent holds may be of one class."""
    short = counted(draw(np.random.default_rng(8), 2000, median=30))
    classes = (class_view(CHAT, short, *groups_of(CHAT, 0)), class_view(BATCH, LENGTHS))
    waits = []
    for parked in (0, 20):
        count = (instance(running=PLACES, parked=parked),)
        waits.append(of(at(cluster(*classes, instances=count, queues={})), ForecastQuery(cls=CHAT)).wait)
    free, behind = waits
    cost_s = np.array([counted_mean_s(short), counted_mean_s(LENGTHS)]) / PLACES
    # The relaxed class's count for a third less: that share may have been evicted, and follow.
    seen = np.array([cost_s[0], cost_s[1], cost_s[1], 0.0])
    share = np.array([1 / 2, 1 / 3, 0, 1 / 6])
    mean_s = float(seen @ share)
    assert behind.mean - free.mean == pytest.approx(20 * mean_s, rel=0.05)
    deadline_span_s = math.sqrt(float(seen**2 @ share) - mean_s**2)
    assert math.sqrt(behind.var) > 20 * deadline_span_s > math.sqrt(free.var)


def test_leases_tell_what_came_and_ended_since_the_last_heartbeat() -> None:
    groups = groups_of(CHAT, 0)
    view = cluster(
        class_view(CHAT, LENGTHS, *groups),
        instances=(instance(running=PLACES - 2, parked=0),),
        queues={"gpu-0": groups},
    )
    found = {}
    for count in (PLACES - 6, PLACES - 2, PLACES + 3):
        now = at(replace(view, leased={InstanceId("gpu-0"): count})).instances[InstanceId("gpu-0")]
        found[count] = now.status.running, now.status.parked, now.free
    assert found == {
        PLACES - 6: (PLACES - 6, 0, 6),
        PLACES - 2: (PLACES - 2, 0, 2),
        PLACES + 3: (PLACES, 3, 0),
    }


def test_a_first_token_is_what_a_ttft_class_is_judged_by() -> None:
    met = of(behind_a_full_batch(64, cls=STREAM), ForecastQuery(cls=STREAM, rank=0)).met
    as_answer = of(behind_a_full_batch(64), ForecastQuery(cls=CHAT, rank=0, age_s=19.0)).met
    assert met > 0.8, "a place is free within a second, mostly"
    assert as_answer < 0.2, "an answer takes longer"


def test_a_batch_below_saturation_is_not_taken_for_a_full_one() -> None:
    """Iterations of a real profile get longer with the batch."""
    slope = IterationTime(host_ms=0.0, linear_ms=((1, 10.0),), kv_ms=0.0, sequence_ms=2.0)
    fleet = steady_fleet(PLACES)
    profile = replace(fleet.profiles[M, "GPU"], iteration=slope)
    fleet = replace(fleet, profiles={**fleet.profiles, (M, "GPU"): profile})
    times = []
    for running in (0, 8, 16):
        groups = groups_of(CHAT, 0)
        view = cluster(
            class_view(CHAT, LENGTHS, *groups),
            instances=(instance(running=running),),
            queues={"gpu-0": groups},
        )
        now = first_snapshot(view, fleet)
        expected = of(now, ForecastQuery(cls=CHAT))
        times.append(expected.completion.normal.mean - expected.wait.mean)
    assert times[0] < 0.6 * times[1] < 0.6 * times[2]


def test_the_deadlines_of_a_group_reach_to_the_arrival_of_the_next() -> None:
    first, second = groups_of(CHAT, 10, 10)
    first, second = replace(first, head_arrival_ns=NOW_NS - 9 * S), replace(second, head_arrival_ns=NOW_NS)
    other = groups_of(STREAM, 4)[0]
    chat = replace(class_view(CHAT, LENGTHS, first, second), newest_arrival_ns=NOW_NS + 2 * S)
    last_ns = last_arrivals_ns([(first, chat), (second, chat), (other, class_view(STREAM, LENGTHS, other))])
    assert last_ns == {first.id: NOW_NS, second.id: NOW_NS + 2 * S, other.id: NOW_NS}
    assert deadlines_s(first, last_ns[first.id], NOW_NS) == (11.0, 20.0)
