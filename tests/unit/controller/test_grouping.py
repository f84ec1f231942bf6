"""Groups as counted ranges: after regrouping they cover exactly what waits."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from qlm.controller.core.balancing import BALANCED, BalanceTarget
from qlm.controller.core.grouping import GroupChanges, regroup
from qlm.domain.group import Group, RequestClass
from qlm.domain.ids import GroupId, InstanceId, ModelId
from qlm.domain.plan_change import CloseGroup, CreateGroup, PlanChange, ResizeGroup
from qlm.domain.view import ClassView

CLS = RequestClass(ModelId("m"), "batch")
S = 1_000_000_000
A, B = InstanceId("a"), InstanceId("b")
SPREADS = st.builds(
    BalanceTarget,
    keep_max=st.none() | st.integers(0, 9),
    shares=st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 20)), max_size=3).map(tuple),
    placement=st.sampled_from([None, A, B]),
    seal=st.booleans(),
    cuts=st.dictionaries(
        st.sampled_from([GroupId(f"g{seq}") for seq in range(1, 5)]), st.integers(1, 9), max_size=3
    ).map(lambda cuts: tuple(cuts.items())),
)


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
    queued: int, *groups: Group, size_max: int = 4, now_s: int = 1, balance: BalanceTarget = BALANCED
) -> GroupChanges:
    names = itertools.count(100)
    return regroup(
        ClassView(cls=CLS, queued=queued, groups=groups),
        size_max=size_max,
        now_ns=now_s * S,
        linger_s=30.0,
        new_id=lambda cls: GroupId(f"g{next(names)}"),
        balance=balance,
    )


def test_new_arrivals_fill_the_open_group_before_new_ones_are_formed() -> None:
    changes, groups, _ = run(6, group(1, 3, 1))
    assert changes == [
        ResizeGroup(id=GroupId("g1"), count=4, sealed=False),
        CreateGroup(id=GroupId("g100"), cls=CLS, count=3),
        ResizeGroup(id=GroupId("g1"), count=4, sealed=True),
    ]
    assert [g.remaining for g in groups] == [3, 3]


def test_a_group_beyond_its_size_is_sealed() -> None:
    changes, _, _ = run(5, group(1, 5))
    assert changes == [
        ResizeGroup(id=GroupId("g1"), count=5, sealed=True),
        CreateGroup(id=GroupId("g100"), cls=CLS, count=0),
    ], "an empty one is opened for the next arrivals"


def test_an_exhausted_sealed_group_is_closed_and_an_open_one_lingers() -> None:
    changes, groups, _ = run(0, group(1, 2, 2, sealed=True), group(2, 2, 2))
    assert changes == [CloseGroup(id=GroupId("g1"))]
    assert [g.id for g in groups] == ["g2"]
    assert run(0, group(2, 2, 2), now_s=60).changes == [CloseGroup(id=GroupId("g2"))]


def test_cancelled_requests_are_taken_off_the_newest_groups() -> None:
    changes, groups, _ = run(3, group(1, 4, sealed=True), group(2, 2))
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
    SPREADS,
)
def test_groups_cover_exactly_what_waits(
    rows: list[tuple[int, int, bool]], queued: int, size_max: int, now_s: int, balance: BalanceTarget
) -> None:
    groups = [
        group(i, count=left + pulled, pulled=pulled, sealed=sealed)
        for i, (left, pulled, sealed) in enumerate(rows, 1)
    ]
    changes, after, placements = run(queued, *groups, size_max=size_max, now_s=now_s, balance=balance)
    assert placements.keys() <= {g.id for g in after}
    assert all(g.sealed for g in after[:-1]), "arrivals join the newest group only"
    assert all(g.count <= max(size_max, g.pulled) for g in after if g.id.startswith("g1") and len(g.id) > 2)
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


def test_what_the_open_group_is_not_to_keep_becomes_groups_elsewhere() -> None:
    balance = BalanceTarget(keep_max=2, shares=((B, 5), (A, 3)), placement=B, seal=True)
    changes, groups, placements = run(10, group(1, 12, 2), size_max=20, balance=balance)
    assert [(g.remaining, g.sealed) for g in groups] == [(2, True), (5, True), (3, False)]
    assert placements == {"g100": B, "g101": A}
    assert changes[0] == ResizeGroup(id=GroupId("g1"), count=4, sealed=True)


def test_what_is_cut_off_sealed_groups_becomes_groups_of_their_own() -> None:
    """The open group takes none of it: it may be where the sealed one is."""
    balance = BalanceTarget(cuts=((GroupId("g1"), 6),), shares=((B, 6),), placement=B)
    changes, groups, placements = run(
        10, group(1, 10, sealed=True), group(2, 0), size_max=20, balance=balance
    )
    assert [(g.remaining, g.sealed) for g in groups] == [(4, True), (0, True), (6, False)]
    assert placements == {"g100": B}
    assert changes[0] == ResizeGroup(id=GroupId("g1"), count=4, sealed=True)


def test_an_open_group_without_requests_goes_where_the_next_one_would_wait_least() -> None:
    changes, groups, placements = run(0, group(1, 3, 3), balance=BalanceTarget(placement=B))
    assert (changes, placements) == ([], {"g1": B})
    assert not groups[0].sealed


def test_an_unchanged_class_needs_no_change() -> None:
    first = group(1, 4, sealed=True)
    assert run(6, first, group(2, 2)).changes == []
    assert replace(first, pulled=1).remaining == 3
