"""Groups as counted ranges: after regrouping they cover exactly what waits."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from qlm.controller.grouping import regroup
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, ModelId
from qlm.domain.plan_change import CloseGroup, CreateGroup, PlanChange, ResizeGroup
from qlm.domain.view import ClassView

CLS = RequestClass(ModelId("m"), "batch")
S = 1_000_000_000


def group(seq: int, count: int, pulled: int = 0, *, sealed: bool = False, created_s: int = 0) -> Group:
    return Group(
        id=GroupId(f"g{seq}"),
        cls=CLS,
        seq=seq,
        count=count,
        pulled=pulled,
        sealed=sealed,
        created_ns=created_s * S,
    )


def run(
    queued: int, *groups: Group, size_max: int = 4, now_s: int = 1
) -> tuple[list[PlanChange], list[Group]]:
    names = itertools.count(100)
    return regroup(
        ClassView(cls=CLS, queued=queued, groups=groups),
        size_max=size_max,
        now_ns=now_s * S,
        linger_s=30.0,
        new_id=lambda cls: GroupId(f"g{next(names)}"),
    )


def test_new_arrivals_fill_the_open_group_before_new_ones_are_formed() -> None:
    changes, groups = run(6, group(1, 3, 1))
    assert changes == [
        ResizeGroup(id=GroupId("g1"), count=4, sealed=False),
        CreateGroup(id=GroupId("g100"), cls=CLS, count=3),
        ResizeGroup(id=GroupId("g1"), count=4, sealed=True),
    ]
    assert [g.remaining for g in groups] == [3, 3]


def test_a_group_beyond_its_size_is_sealed() -> None:
    changes, _ = run(5, group(1, 5))
    assert changes == [ResizeGroup(id=GroupId("g1"), count=5, sealed=True)]


def test_an_exhausted_sealed_group_is_closed_and_an_open_one_lingers() -> None:
    changes, groups = run(0, group(1, 2, 2, sealed=True), group(2, 2, 2))
    assert changes == [CloseGroup(id=GroupId("g1"))]
    assert [g.id for g in groups] == ["g2"]
    assert run(0, group(2, 2, 2), now_s=60)[0] == [CloseGroup(id=GroupId("g2"))]


def test_cancelled_requests_are_taken_off_the_newest_groups() -> None:
    changes, groups = run(3, group(1, 4, sealed=True), group(2, 2))
    assert [g.remaining for g in groups] == [3, 0]
    assert changes[:2] == [
        ResizeGroup(id=GroupId("g2"), count=0, sealed=False),
        ResizeGroup(id=GroupId("g1"), count=3, sealed=True),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=6),
    st.integers(0, 60),
    st.integers(1, 7),
    st.integers(0, 100),
)
def test_groups_cover_exactly_what_waits(
    rows: list[tuple[int, int, bool]], queued: int, size_max: int, now_s: int
) -> None:
    groups = [
        group(i, count=left + pulled, pulled=pulled, sealed=sealed)
        for i, (left, pulled, sealed) in enumerate(rows, 1)
    ]
    changes, after = run(queued, *groups, size_max=size_max, now_s=now_s)
    assert sum(g.remaining for g in after) == queued
    assert _apply(groups, changes) == {g.id: g.count for g in after}
    assert [g.seq for g in after] == sorted(g.seq for g in after)
    assert not any(
        isinstance(c, ResizeGroup | CloseGroup)
        and c.id not in {g.id for g in groups} | {n.id for n in changes if isinstance(n, CreateGroup)}
        for c in changes
    )


def _apply(groups: list[Group], changes: list[PlanChange]) -> dict[GroupId, int]:
    counts = {g.id: g.count for g in groups}
    pulled = {g.id: g.pulled for g in groups}
    for change in changes:
        match change:
            case CreateGroup(id=id, count=count):
                counts[id] = count
            case ResizeGroup(id=id, count=count):
                assert count >= pulled.get(id, 0)
                counts[id] = count
            case CloseGroup(id=id):
                del counts[id]
            case _:
                raise AssertionError(change)
    return counts


def test_an_unchanged_class_needs_no_change() -> None:
    first = group(1, 4, sealed=True)
    assert run(6, first, group(2, 2))[0] == []
    assert replace(first, pulled=1).remaining == 3
