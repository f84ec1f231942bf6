"""Load balance: the next request goes where it waits least, and what waits is spread evenly."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from qlm.controller.balancing import EVEN, Loads, Spread
from qlm.controller.estimating.state import NOTHING_LEARNED, learned
from qlm.domain.fleet import EngineState
from qlm.domain.group import Group
from qlm.domain.ids import InstanceId
from qlm.domain.length_histogram import NO_LENGTHS
from qlm.domain.view import ClassView, ClusterView
from support.estimating import (
    BATCH,
    CHAT,
    NOW_NS,
    OTHER,
    class_view,
    cluster,
    groups_of,
    instance,
    steady_fleet,
)

PLACES = 16
NAMES = ("a", "b", "c")


def view_of(
    *classes: ClassView,
    queues: Mapping[str, tuple[Group, ...]] | None = None,
    leased: tuple[int, ...] = (0, 0, 0),
) -> ClusterView:
    view = cluster(*classes, instances=tuple(instance(name) for name in NAMES), queues=dict(queues or {}))
    held = {InstanceId(name): count for name, count in zip(NAMES, leased, strict=True) if count}
    return replace(view, leased=held)


def spread(view: ClusterView, at: int = 0) -> Spread:
    fleet = steady_fleet(PLACES)
    state = learned(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)
    return Loads(view, state.times, fleet).spread(view.classes[at])


def test_the_next_request_goes_to_the_instance_with_the_least_work() -> None:
    idle = class_view(CHAT, NO_LENGTHS, *groups_of(CHAT, 0))
    assert spread(view_of(idle, leased=(5, 2, 9))).home == "b"
    assert spread(view_of(idle, leased=(0, 0, 0))).home == "a", "equals by name"


def test_a_small_difference_moves_nothing() -> None:
    (opened,) = groups_of(CHAT, 0)
    at_a = {"a": (opened,)}
    idle = class_view(CHAT, NO_LENGTHS, opened)
    assert spread(view_of(idle, queues=at_a, leased=(9, 8, 9))).home == "a"
    assert spread(view_of(idle, queues=at_a, leased=(12, 8, 9))).home == "b"


def test_a_burst_that_joined_one_group_is_spread_over_all() -> None:
    (opened,) = groups_of(CHAT, 30)
    asked = spread(view_of(class_view(CHAT, NO_LENGTHS, opened), queues={"a": (opened,)}))
    assert asked.leave and asked.keep == 10
    assert dict(asked.shares) == {"b": 10, "c": 10}


def test_new_work_is_poured_where_there_is_least() -> None:
    loose = class_view(CHAT, NO_LENGTHS, ungrouped=12)
    assert dict(spread(view_of(loose, leased=(10, 0, 4))).shares) == {"b": 8, "c": 4}


def test_less_urgent_work_does_not_count() -> None:
    (batch,) = groups_of(BATCH, 50, sealed=True)
    chat, later = class_view(CHAT, NO_LENGTHS, *groups_of(CHAT, 0)), class_view(BATCH, NO_LENGTHS, batch)
    assert spread(view_of(chat, later, queues={"a": (batch,)}, leased=(0, 1, 1))).home == "a"
    urgent = groups_of(CHAT, 50, sealed=True)
    behind = class_view(BATCH, NO_LENGTHS, *groups_of(BATCH, 0))
    view = view_of(behind, class_view(CHAT, NO_LENGTHS, *urgent), queues={"a": urgent}, leased=(0, 1, 1))
    assert spread(view).home == "b"


def test_while_an_instance_has_the_model_no_other_one_swaps_for_balance() -> None:
    other = class_view(OTHER, NO_LENGTHS, *groups_of(OTHER, 0))
    view = view_of(other)
    loaded = replace(view.instances[2], active_model=OTHER.model, engines=((OTHER.model, EngineState.AWAKE),))
    view = replace(view, instances=(*view.instances[:2], loaded), leased={InstanceId("c"): 8})
    assert spread(view).home == "c"
    assert spread(replace(view, leased={InstanceId("c"): 2000})).home == "c", "plans swap, balance does not"


def test_where_a_model_that_nobody_has_loaded_goes_is_for_plans_to_say() -> None:
    (opened,) = groups_of(OTHER, 6)
    waiting = class_view(OTHER, NO_LENGTHS, opened, ungrouped=4)
    for leased in ((0, 0, 0), (30, 10, 30)):
        assert spread(view_of(waiting, queues={"a": (opened,)}, leased=leased)) == EVEN


def test_several_instances_swap_if_less_is_waited_in_all() -> None:
    """A swap takes 31 s here and a request adds 0.8 s: twenty on two instances wait 4 s less each."""
    burst = view_of(class_view(OTHER, NO_LENGTHS, ungrouped=20))
    assert dict(spread(burst).shares) == {"a": 10, "b": 10}, "80 s against 62 s, but for c only 27 s"
    held = replace(burst, leased={InstanceId(name): 5 for name in NAMES})
    assert spread(held) == EVEN, "five on each instance would wait for two swaps"
    (queued,) = groups_of(CHAT, 5, sealed=True)
    chat = class_view(CHAT, NO_LENGTHS, queued)
    behind = view_of(burst.classes[0], chat, queues={"b": (queued,), "c": (queued,)})
    assert spread(behind) == EVEN, "as would those on its queue"
    late = class_view(OTHER.missed(), NO_LENGTHS, ungrouped=400)
    assert spread(view_of(late)) == EVEN, "who has no deadline any more gains nothing"
    larger = replace(burst, classes=(class_view(OTHER, NO_LENGTHS, ungrouped=400),))
    assert [name for name, _ in spread(replace(larger, leased=held.leased)).shares] == ["a", "b", "c"]


def test_instances_that_cannot_serve_take_nothing() -> None:
    view = view_of(class_view(CHAT, NO_LENGTHS, ungrouped=6))
    draining, failed, able = view.instances
    draining = replace(draining, draining=True)
    failed = replace(failed, engines=((CHAT.model, EngineState.FAILED),))
    assert dict(spread(replace(view, instances=(draining, failed, able))).shares) == {"c": 6}
    assert spread(replace(view, instances=(draining,))) == EVEN


@given(
    leased=st.tuples(*[st.integers(0, 40)] * 3),
    waiting=st.integers(0, 60),
    loose=st.integers(0, 60),
    home=st.sampled_from(NAMES),
)
def test_every_request_is_kept_or_given_a_share(
    leased: tuple[int, int, int], waiting: int, loose: int, home: str
) -> None:
    (opened,) = groups_of(CHAT, waiting)
    cls = class_view(CHAT, NO_LENGTHS, opened, ungrouped=loose)
    asked = spread(view_of(cls, queues={home: (opened,)}, leased=leased))
    kept = waiting if not asked.leave else asked.keep
    assert kept is not None and 0 <= kept <= waiting
    assert sum(count for _, count in asked.shares) == waiting - kept + loose
    assert all(count > 0 for _, count in asked.shares)
    if asked.leave and asked.shares:
        after = {name: leased[at] for at, name in enumerate(NAMES)}
        after[home] += kept
        for name, count in asked.shares:
            after[name] += count
        filled = [after[name] for name, _ in asked.shares]
        assert max(filled) - min(filled) <= 2, "what is poured ends at one level"
        assert min(filled) <= min(after.values()) + 2, "nobody is left out"


def test_claims_of_one_class_count_for_the_next() -> None:
    fleet = steady_fleet(PLACES)
    view = view_of(
        class_view(CHAT, NO_LENGTHS, ungrouped=9), class_view(BATCH, NO_LENGTHS, *groups_of(BATCH, 0)),
        leased=(0, 20, 20),
    )  # fmt: skip
    state = learned(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)
    loads = Loads(view, state.times, fleet)
    assert dict(loads.spread(view.classes[0]).shares) == {"a": 9}
    assert loads.spread(view.classes[1]).home == "a"
    crowded = Loads(replace(view, leased={InstanceId("a"): 15, InstanceId("b"): 20}), state.times, fleet)
    crowded.spread(view.classes[0])
    assert crowded.spread(view.classes[1]).home == "c"
