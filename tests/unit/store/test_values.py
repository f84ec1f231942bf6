"""Values of the store: encoded tokens, arrival order, limits, journal entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qlm.domain.errors import InvalidValueError
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId, RequestId
from qlm.domain.virtual_queue import ClassForecast, VirtualQueue
from qlm.store.core.arrival_order import ArrivalHistory, ArrivalOrder
from qlm.store.core.effects import Logged
from qlm.store.core.limits import StoreLimits
from qlm.store.core.tables import QueueRow
from qlm.store.core.token_codec import decode_tokens, encode_tokens
from qlm.store.embedded.journal_codec import decode_log, encode_log, log_key

MODEL = ModelId("m")
token_ids = st.lists(st.integers(0, 2**32 - 1)).map(tuple)
Arrival = tuple[int, RequestId]
arrivals = st.tuples(st.integers(0, 5), st.text(max_size=2).map(RequestId))


@given(token_ids)
def test_tokens_are_packed_in_four_little_endian_bytes_each(ids: tuple[int, ...]) -> None:
    assert encode_tokens(ids) == b"".join(token_id.to_bytes(4, "little") for token_id in ids)
    assert decode_tokens(encode_tokens(ids)) == ids


@given(st.sets(arrivals))
def test_the_order_of_arrival_is_that_of_time_then_id(keys: set[tuple[int, RequestId]]) -> None:
    order = ArrivalOrder()
    for key in keys:
        order.add(key)
    gone = {key for key in keys if key[0] == 3}
    for key in gone:
        order.remove(key)
    left = sorted(keys - gone)
    assert len(order) == len(left)
    assert [order.arrival_ns(rank) for rank in range(len(left) + 1)] == [at for at, _ in left] + [None]


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "first leaves"]), st.integers(0, 1999))))
def test_a_long_order_of_arrival_keeps_its_order(steps: list[tuple[str, int]]) -> None:
    order, left = ArrivalOrder(), list(range(0, 4000, 2))
    for at_ns in left:
        order.add((at_ns, RequestId("r")))
    for step, number in steps:
        if step == "add" and (at_ns := 2 * number + 1) not in left:
            order.add((at_ns, RequestId("r")))
            left = sorted([*left, at_ns])
        elif step == "remove" and left:
            order.remove((left.pop(number % len(left)), RequestId("r")))
        elif step == "first leaves":
            for at_ns in left[: number // 4]:
                order.remove((at_ns, RequestId("r")))
            left = left[number // 4 :]
    assert [order.arrival_ns(rank) for rank in range(len(order) + 1)] == [*left, None]


@given(st.lists(st.tuples(arrivals, st.integers(1, 700))))
def test_the_history_of_arrivals_lists_kept_requests(steps: list[tuple[Arrival, int]]) -> None:
    history, kept = ArrivalHistory(), set[Arrival]()
    for key, times in steps:
        for _ in range(times):
            if key in kept:
                kept.remove(key)
                history.leave(kept.__contains__)
            else:
                kept.add(key)
                history.add(key)
    assert list(history.newest_first(kept.__contains__)) == [id for _, id in sorted(kept, reverse=True)]


def test_a_key_that_is_not_in_the_order_cannot_leave_it() -> None:
    with pytest.raises(ValueError, match="not in list"):
        ArrivalOrder().remove((1, RequestId("r")))


@given(st.lists(st.tuples(st.booleans(), arrivals)))
def test_equal_places_in_the_order_of_arrival_mean_equal_requests(steps: list[tuple[bool, Arrival]]) -> None:
    order, waiting = ArrivalOrder(), set[Arrival]()
    seen: dict[tuple[int, int], int] = {}
    for first_leaves, key in steps:
        if first_leaves and waiting:
            order.remove(min(waiting))
            waiting.remove(min(waiting))
        elif key in waiting:
            order.remove(key)
            waiting.remove(key)
        else:
            order.add(key)
            waiting.add(key)
        for rank, (at_ns, _) in enumerate(sorted(waiting)):
            assert seen.setdefault(order.place(rank), at_ns) == at_ns
        assert [order.rank(key) for key in sorted(waiting)] == list(range(len(waiting)))


def test_places_stay_while_requests_join_at_the_end_and_leave_from_the_front() -> None:
    order = ArrivalOrder()
    for at_ns in range(5):
        order.add((at_ns, RequestId("r")))
    third = order.place(2)
    order.remove((0, RequestId("r")))
    order.add((9, RequestId("r")))
    assert order.place(1) == third


@given(st.text(min_size=1), st.integers(0, 10**6), token_ids, st.integers(0, 2**62))
def test_a_log_entry_comes_back_from_the_journal(id: str, offset: int, ids: tuple[int, ...], at: int) -> None:
    logged = Logged(RequestId(id), offset, ids, at)
    assert decode_log(log_key(logged), encode_log(logged)) == logged


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("result_ttl_s", 0.0),
        ("results_max", 0),
        ("events_max", 0),
        ("backlog_max", -1),
        ("lengths_window", 0),
    ],
)
def test_limits_must_be_positive(field: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match=f"store.{field} is {value}"):
        StoreLimits(**{field: value})  # type: ignore[arg-type]


GROUPS = tuple(Group(id=GroupId(f"g{n}"), cls=RequestClass(MODEL, "batch"), seq=n, count=1) for n in range(3))
FORECASTS = tuple(
    (ClassForecast(cls=GROUPS[0].cls, service_s=n, answer_s=n, rate_rps=n),) for n in (1.0, 2.0)
)


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(GROUPS), unique=True).map(tuple),
            st.integers(0, 1),
            st.sampled_from(FORECASTS),
            st.sampled_from([(), (MODEL,)]),
        ),
        min_size=1,
    )
)
def test_the_value_of_a_queue_is_that_of_its_content_and_the_same_until_it_changes(
    contents: list[tuple[tuple[Group, ...], int, tuple[ClassForecast, ...], tuple[ModelId, ...]]],
) -> None:
    row, instance = QueueRow(), InstanceId("i")
    for groups, version, forecasts, homes in contents:
        row.version, row.forecasts, row.homes = version, forecasts, homes
        queue = row.value(instance, groups)
        assert queue == VirtualQueue(
            instance=instance, version=version, groups=groups, forecasts=forecasts, homes=homes
        )
        assert row.value(instance, tuple(list(groups))) is queue
