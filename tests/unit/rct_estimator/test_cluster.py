import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.cluster.arrays import Groups, Instances, IntArray
from qlm.rct_estimator.cluster.estimate import ClusterEstimate, estimate
from qlm.rct_estimator.cluster.queue_rows import met_between, normal_cdf
from qlm.rct_estimator.cluster.service_table import (
    ClassOnKind,
    ServiceTable,
    SwapTimes,
    class_times,
    service_table,
)
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.throughput import SteadyState
from qlm.rct_estimator.waiting_time import QueuePart, emptying_times, waiting_time
from support.batch_slots import CAP, draw, known, serve, state_of

LENGTHS = [known(draw(np.random.default_rng(i), 5000, median=m)) for i, m in enumerate((150, 80, 300))]
PLACES = 16
MODELS = [0, 0, 1]
SWAP = SwapTimes(warm_s=2.0, cold_s=30.0, unload_s=1.0)


def state(cls: int, kind: int) -> SteadyState:
    base = state_of(LENGTHS[cls], PLACES)
    slow = 1.0 + kind
    return replace(
        base,
        request_s=base.request_s * slow,
        iteration_s=base.iteration_s * slow,
        decode_s=base.decode_s * slow,
        alone_s=base.alone_s * slow,
        prefill_s=base.prefill_s * slow,
        prompt_s=0.1 * base.request_s * slow if cls == 1 else 0.0,
        first_prompts_saving_s=0.2 * base.request_s * slow if cls == 1 else 0.0,
        kv_share=0.3 * cls,
        workload=replace(
            base.workload,
            mean_var=(0.05 * base.workload.output.mean) ** 2,
            prompt_tokens=100.0,
            prompt_var=150.0**2,
            # The long answers of the last class pile up in the batch.
            output=uneven(base.workload.output) if cls == 2 else base.workload.output,
        ),
    )


def uneven(length: Normal) -> Normal:
    return Normal(length.mean, (1.6 * length.mean) ** 2)


TABLE: ServiceTable = service_table(
    MODELS,
    {
        (cls, kind): class_times(
            ClassOnKind(state=state(cls, kind), lengths=LENGTHS[cls], cap=CAP), first_token=cls == 1
        )
        for cls in range(3)
        for kind in range(2)
        if (cls, kind) != (2, 1)
    },
    {(model, kind): SWAP for model in range(2) for kind in range(2)},
    kinds=2,
)


def fleet(n: int, *, loaded: int = 0, free: float = 0.0) -> Instances:
    return Instances(
        kind=np.zeros(n, dtype=np.int64),
        loaded=np.full(n, loaded),
        warm=np.zeros((n, 2), dtype=bool),
        busy_s=np.full(n, 1.5),
        busy_var=np.full(n, 0.5),
        free=np.full(n, free),
        speed=np.full(n, 1.0),
        uncertainty=np.full(n, 0.0),
        load=np.full(n, 0.0),
    )


def groups_of(*rows: tuple[int, float, float]) -> Groups:
    return Groups(
        cls=np.array([r[0] for r in rows], dtype=np.int64),
        requests=np.array([r[1] for r in rows], dtype=np.float64),
        deadline_s=np.array([r[2] for r in rows], dtype=np.float64),
        deadline_span_s=np.zeros(len(rows)),
    )


def order(*indices: int) -> IntArray:
    return np.array(indices, dtype=np.int64)


rows = st.tuples(
    st.integers(0, 2), st.integers(0, 120).map(float), st.one_of(st.just(math.inf), st.floats(0, 200))
)
queues = st.lists(st.lists(rows, max_size=6), min_size=1, max_size=4)
frees = st.sampled_from([0.0, 5.0, math.inf])


def view(parts: list[list[tuple[int, float, float]]]) -> tuple[Groups, list[IntArray]]:
    flat = [row for queue in parts for row in queue]
    ends = np.cumsum([len(queue) for queue in parts])
    return groups_of(*flat), [np.arange(e - len(q), e) for q, e in zip(parts, ends, strict=True)]


def same(one: ClusterEstimate, other: ClusterEstimate) -> None:
    for column in fields(ClusterEstimate):
        np.testing.assert_allclose(
            getattr(one, column.name), getattr(other, column.name), rtol=1e-9, atol=1e-7, err_msg=column.name
        )


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=6), frees, st.sampled_from([-1, 0, 1]))
def test_the_arrays_say_what_the_equations_for_one_queue_say(
    queue: list[tuple[int, float, float]], free: float, loaded: int
) -> None:
    groups, orders = view([queue])
    instances = fleet(1, loaded=loaded, free=free)
    result = estimate(TABLE, instances, groups, orders)
    parts: list[QueuePart] = []
    model, used, run = loaded, {loaded}, 0.0
    for i, (cls, requests, _) in enumerate(queue):
        changes = MODELS[cls] != model
        swap, emptying = None, Normal(0.0)
        if changes:
            load_s = SWAP.warm_s if MODELS[cls] in used else SWAP.cold_s
            swap = Normal(load_s + (SWAP.unload_s if model >= 0 else 0.0))
            if parts:
                mean, var = TABLE.emptying(np.array([queue[i - 1][0]]), np.array([0]), np.array([run]))
                emptying = Normal(float(mean[0]), float(var[0]))
            run = 0.0
        parts.append(QueuePart(state=state(cls, 0), requests=requests, cls=cls, swap=swap, emptying=emptying))
        model, run = MODELS[cls], run + requests
        used.add(model)
        wait = waiting_time(parts, busy=Normal(1.5, 0.5), free=free)
        tail_s, tail_var = TABLE.tail(np.array([cls]), np.array([0]), np.array([requests]))
        assert result.last_s[i] == pytest.approx(wait.mean)
        assert result.completion_s[i] == pytest.approx(wait.mean + tail_s[0])
        assert result.completion_var[i] == pytest.approx(wait.var + tail_var[0], rel=1e-6)


@settings(deadline=None)
@given(queues, st.randoms(use_true_random=False))
def test_the_order_of_input_does_not_matter(
    parts: list[list[tuple[int, float, float]]], random: object
) -> None:
    groups, orders = view(parts)
    size = len(groups.cls)
    shuffled = np.random.default_rng(size).permutation(size)
    place = np.argsort(shuffled)
    turned = Groups(**{f.name: getattr(groups, f.name)[shuffled] for f in fields(Groups)})
    one = estimate(TABLE, fleet(len(parts)), groups, orders)
    other = estimate(TABLE, fleet(len(parts)), turned, [place[o] for o in orders])
    for column in fields(ClusterEstimate):
        np.testing.assert_allclose(getattr(one, column.name)[shuffled], getattr(other, column.name))


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=6), rows, frees)
def test_more_ahead_never_completes_earlier_nor_meets_more(
    queue: list[tuple[int, float, float]], front: tuple[int, float, float], free: float
) -> None:
    # Of the same model, since a change of model also changes which one is loaded when the rest starts.
    front = (queue[0][0], *front[1:])
    groups, orders = view([[front, *queue]])
    instances = fleet(1, free=free)
    without = estimate(TABLE, instances, groups, [orders[0][1:]])
    behind = estimate(TABLE, instances, groups, orders)
    rest = orders[0][1:]
    assert np.all(behind.completion_s[rest] >= without.completion_s[rest] - 1e-7)
    assert np.all(behind.last_s >= behind.first_s - 1e-9)


@settings(deadline=None)
@given(queues, st.floats(0, 100))
def test_longer_deadlines_never_lower_p_met(
    parts: list[list[tuple[int, float, float]]], more_s: float
) -> None:
    groups, orders = view(parts)
    later = replace(groups, deadline_s=groups.deadline_s + more_s)
    strict, relaxed = (estimate(TABLE, fleet(len(parts)), g, orders) for g in (groups, later))
    assert np.all(relaxed.met >= strict.met - 2e-3)
    assert np.all((strict.met >= 0) & (strict.met <= 1))
    assert np.all(strict.met[np.isinf(groups.deadline_s)] == pytest.approx(1.0))
    assert np.all(strict.completion_var >= 0)


@pytest.mark.parametrize("free", [0.0, math.inf])
def test_p_met_of_groups_is_that_of_many_trials(free: float) -> None:
    rng = np.random.default_rng(21)
    sizes, deadlines_s = [48, 64, 40], [20.0, 45.0, 50.0]
    requests = sum(sizes)
    old = 0 if math.isinf(free) else 2000
    start_s, end_s = serve(draw(rng, 400, old + requests), PLACES)
    # With a full batch in front: long after the start, when ages in the batch are mixed.
    now_s = start_s[:, old - 1] if old else np.zeros(400)
    done_s = end_s[:, old:] - now_s[:, None]
    certain = replace(TABLE, work_uncertainty=np.zeros_like(TABLE.work_uncertainty))
    instances = replace(fleet(1, free=free), busy_s=np.zeros(1), busy_var=np.zeros(1))
    groups = groups_of(*[(0, n, d) for n, d in zip(sizes, deadlines_s, strict=True)])
    result = estimate(certain, instances, groups, [order(0, 1, 2)])
    for i, (first, last) in enumerate([(0, 48), (48, 112), (112, 152)]):
        met = float(np.mean(done_s[:, first:last] <= deadlines_s[i]))
        assert result.met[i] == pytest.approx(met, abs=0.04)
        actual = done_s[:, first:last].max(axis=1)
        assert result.completion_s[i] == pytest.approx(actual.mean(), rel=0.06)


def test_first_token_objectives_do_not_wait_for_the_answer() -> None:
    groups = groups_of((0, 10.0, 3.0), (1, 10.0, 3.0))
    instances = replace(fleet(2, free=math.inf), busy_s=np.zeros(2), busy_var=np.zeros(2))
    result = estimate(TABLE, instances, groups, [order(0), order(1)])
    assert result.met[1] == pytest.approx(1.0, abs=0.01)
    assert result.met[0] < 0.6


def test_a_slower_instance_completes_later_and_its_uncertainty_widens() -> None:
    groups = groups_of((0, 50.0, 40.0), (0, 50.0, 40.0))
    instances = replace(fleet(2), speed=np.array([1.0, 2.0]), busy_s=np.zeros(2), busy_var=np.zeros(2))
    result = estimate(TABLE, instances, groups, [order(0), order(1)])
    assert result.completion_s[1] == pytest.approx(2 * result.completion_s[0])
    doubtful = estimate(TABLE, replace(instances, uncertainty=np.full(2, 0.2)), groups, [order(0), order(1)])
    assert np.all(doubtful.completion_var > result.completion_var)
    np.testing.assert_allclose(doubtful.completion_s, result.completion_s)


def test_a_model_at_hand_is_loaded_warm_and_used_ones_stay_warm() -> None:
    groups = groups_of((0, 1.0, math.inf), (2, 1.0, math.inf), (0, 1.0, math.inf))
    instances = fleet(1, loaded=0)
    cold = estimate(TABLE, instances, groups, [order(0, 1, 2)])
    warm = estimate(TABLE, replace(instances, warm=np.array([[False, True]])), groups, [order(0, 1, 2)])
    saved_s = cold.first_s - warm.first_s
    assert saved_s == pytest.approx([0.0, 28.0, 28.0])


def test_a_lightly_loaded_instance_answers_faster() -> None:
    quick = replace(TABLE, alone_step_ratio=np.full_like(TABLE.alone_step_ratio, 0.4))
    instances = fleet(1, free=math.inf)
    groups = groups_of((0, 1.0, 5.0))
    slow = estimate(TABLE, instances, groups, [order(0)])
    assert estimate(quick, instances, groups, [order(0)]).met[0] > slow.met[0] + 0.1


def test_groups_in_no_queue_are_never_done() -> None:
    result = estimate(TABLE, fleet(1), groups_of((0, 5.0, 10.0), (0, 5.0, math.inf)), [order()])
    assert result.instance.tolist() == [-1, -1]
    assert np.all(np.isinf(result.completion_s))
    assert result.met.tolist() == [0.0, 1.0]


def test_a_group_on_a_kind_that_cannot_run_it_is_refused() -> None:
    instances = replace(fleet(1), kind=np.array([1]))
    with pytest.raises(InvalidValueError, match=r"orders\[0\] is 0; expected a group that runs"):
        estimate(TABLE, instances, groups_of((2, 5.0, 1.0)), [order(0)])


def test_a_table_without_swap_times_is_refused() -> None:
    entry = ClassOnKind(state=state(0, 0), lengths=LENGTHS[0], cap=CAP)
    with pytest.raises(InvalidValueError, match="swaps"):
        service_table([0], {(0, 0): class_times(entry, first_token=False)}, {}, kinds=1)


@given(st.integers(1, 16))
def test_tails_between_one_request_and_a_full_batch_are_near_the_exact_ones(requests: int) -> None:
    mean, _ = TABLE.tail(np.array([0]), np.array([0]), np.array([float(requests)]))
    exact, _ = emptying_times(state(0, 0), LENGTHS[0], requests=requests, cap=CAP)
    assert mean[0] == pytest.approx(exact.mean, rel=0.12)


@given(st.lists(st.floats(-12, 12), min_size=1))
def test_the_normal_distribution_function_is_exact_enough(values: list[float]) -> None:
    exact = [0.5 * math.erfc(-v / math.sqrt(2)) for v in values]
    np.testing.assert_allclose(normal_cdf(np.array(values)), exact, atol=1.5e-7)


@given(st.floats(-50, 50), st.floats(-50, 50), st.floats(0.01, 30), st.floats(0, 20))
def test_p_met_along_a_line_is_its_integral(
    first_s: float, last_s: float, sigma: float, service: float
) -> None:
    steps = np.linspace(first_s, last_s, 4001)
    exact = float(normal_cdf((steps - service) / sigma).mean())
    got = met_between(np.array([first_s]), np.array([last_s]), np.array([sigma]), np.array([[service]]))
    assert got[0] == pytest.approx(exact, abs=2e-3)


def test_the_last_group_ends_sooner_the_less_follows_it() -> None:
    """Its batch empties and gets faster: nothing else changes, and no other group."""
    fast = replace(state(0, 0), alone_s=state(0, 0).iteration_s / 4)
    times = class_times(ClassOnKind(state=fast, lengths=LENGTHS[0], cap=CAP), first_token=False)
    table = service_table([0], {(0, 0): times}, {(0, 0): SWAP}, kinds=1)
    groups, orders = view([[(0, 100.0, math.inf), (0, 100.0, math.inf)]])
    done = [
        estimate(table, replace(fleet(1), load=np.array([load])), groups, orders) for load in (0.0, 0.5, 1.0)
    ]
    first, last = (np.array([each.completion_s[at] - each.last_s[at] for each in done]) for at in (0, 1))
    assert np.ptp(first) == 0
    followed, alone = (each.mean for each in emptying_times(fast, LENGTHS[0], requests=200, cap=CAP))
    assert last == pytest.approx([alone, (alone + followed) / 2, followed])
    assert alone < 0.8 * followed
