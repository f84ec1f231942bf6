"""Homes of strands: a preference with a price, for calls of tasks alone."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from qlm.controller.core.balancing import LoadBalance
from qlm.controller.core.clustering import HOLD_NS, NOTHING_COUNTED, with_strands
from qlm.controller.core.estimating.snapshot import take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState, learn
from qlm.controller.core.problem import make_problem
from qlm.controller.core.strand_homes import (
    AWAY_WEIGHT,
    CACHED_PRIOR,
    NO_HOMES,
    StrandHomes,
    strand_counts,
    strand_homes,
)
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import CachedPrompts
from qlm.domain.formats.clusters import CLUSTERS, Clusters, clusters_from_plain, clusters_to_plain
from qlm.domain.formats.strands import STRANDS_MAX, in_strand
from qlm.domain.group import Group
from qlm.domain.ids import GroupId, InstanceId
from qlm.domain.length_histogram import NO_LENGTHS
from qlm.domain.view import ClassView, ClusterView
from qlm.rct_estimator.recompute import recompute_token_s
from support.estimating import (
    CHAT,
    KIND,
    NOW_NS,
    SHIPPED,
    M,
    N,
    class_view,
    cluster,
    groups_of,
    instance,
    steady_fleet,
    steady_profile,
)

PLACES = 4
NAMES = ("a", "b", "c")
PROMPT = 10_000.0
PROFILE = replace(steady_profile(PLACES), iteration=SHIPPED.iteration)
FLEET = replace(steady_fleet(PLACES), profiles={(model, KIND): PROFILE for model in (M, N)})
TOKEN_S = recompute_token_s(PROFILE)


def call(number: int, *counts: int) -> ClassView:
    cls = in_strand(CHAT, number)
    named = (replace(each, id=GroupId(f"{each.id}-{number}")) for each in groups_of(cls, *counts))
    return replace(class_view(cls, NO_LENGTHS, *named), mean_prompt_tokens=PROMPT)


def view_of(
    *classes: ClassView,
    names: tuple[str, ...] = NAMES,
    leased: Mapping[str, int] | None = None,
    queues: dict[str, tuple[Group, ...]] | None = None,
) -> ClusterView:
    view = cluster(*classes, instances=tuple(map(instance, names)), queues=queues or {})
    return replace(view, leased={InstanceId(name): count for name, count in (leased or {}).items()})


def state_of(view: ClusterView) -> EstimatorState:
    return learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=FLEET)


def placed(view: ClusterView, homes: StrandHomes | None = None) -> InstanceId | None:
    known = strand_homes(view) if homes is None else homes
    return LoadBalance(view, state_of(view).times, FLEET, known).target(view.classes[0]).placement


def homes_of(*names: str) -> dict[int, InstanceId]:
    return {number: home for (_, number), home in strand_homes(view_of(call(0, 0), names=names)).of.items()}


def test_each_instance_is_the_home_of_one_strand_before_any_is_that_of_two() -> None:
    assert {homes_of(*NAMES)[number] for number in range(3)} == set(NAMES)


def test_homes_do_not_depend_on_the_order_of_the_instances() -> None:
    assert homes_of("a", "b", "c") == homes_of("c", "a", "b")


def test_a_strand_whose_home_is_gone_has_another() -> None:
    gone = homes_of(*NAMES)[0]
    assert homes_of(*(name for name in NAMES if name != gone))[0] != gone


def test_an_instance_without_the_model_awake_is_no_home() -> None:
    view = view_of(call(0, 0))
    swapped = replace(view, instances=(instance("a", active=N), *view.instances[1:]))
    assert set(strand_homes(swapped).of.values()) == {"b", "c"}


def test_an_instance_that_is_to_leave_the_model_by_the_placement_is_no_home() -> None:
    """It gets no request of the model, and no other instance would be better than the next for the strand."""
    view = view_of(call(0, 0))
    restricted = replace(view, instances=(replace(view.instances[0], models=(N,)), *view.instances[1:]))
    assert set(strand_homes(restricted).of.values()) == {"b", "c"}
    assert placed(restricted) == strand_homes(restricted).of[M, 0]


def test_a_view_without_strands_has_no_homes() -> None:
    assert strand_homes(view_of(class_view(CHAT, NO_LENGTHS, *groups_of(CHAT, 1)))) is NO_HOMES


@pytest.mark.parametrize("number", range(3))
def test_the_next_call_goes_home(number: int) -> None:
    assert placed(view_of(call(number, 0))) == homes_of(*NAMES)[number]


def test_it_goes_elsewhere_once_the_home_has_that_much_more_to_do() -> None:
    home = homes_of(*NAMES)[0]
    assert placed(view_of(call(0, 0), leased={home: 1})) == home
    assert placed(view_of(call(0, 0), leased={home: 200})) != home


def test_groups_of_a_strand_take_longer_away_from_home_and_others_do_not() -> None:
    groups = groups_of(CHAT, 2)
    other = class_view(CHAT, NO_LENGTHS, *groups)
    view = view_of(call(0, 2), other)
    now = take_snapshot(view, now_ns=NOW_NS, fleet=FLEET, state=state_of(view))
    homes = strand_homes(view)
    problem = make_problem(view, now, move_s=1.0, homes=homes)
    kind_at = {each.id: each.kind for each in problem.instances}
    of_strand, others = problem.groups
    home = homes_of(*NAMES)[0]
    away_s = AWAY_WEIGHT * CACHED_PRIOR * PROMPT * TOKEN_S
    for name in NAMES:
        here, there = (of_strand.time[kind_at[InstanceId(each)]] for each in (home, name))
        expected = 0.0 if name == home else away_s
        assert there.service.mean - here.service.mean == pytest.approx(2 * expected)
        assert there.tail.mean - here.tail.mean == pytest.approx(expected)
    assert len(set(map(str, others.time.values()))) == 1


def test_without_strands_the_problem_is_as_before() -> None:
    groups = groups_of(CHAT, 2)
    view = view_of(class_view(CHAT, NO_LENGTHS, *groups), queues={"a": groups})
    now = take_snapshot(view, now_ns=NOW_NS, fleet=FLEET, state=state_of(view))
    assert make_problem(view, now, move_s=1.0) == make_problem(
        view, now, move_s=1.0, homes=strand_homes(view)
    )


def test_where_caches_hold_nothing_no_instance_is_better() -> None:
    cls, home = in_strand(CHAT, 0), homes_of(*NAMES)[0]
    empty = CachedPrompts(cls=cls, prompts=2_000.0, hits=0.0, prompt_tokens=2e7, cached_tokens=0.0)
    view = view_of(call(0, 0))
    reported = tuple(replace(each, prompts=(empty,) if each.id == home else ()) for each in view.instances)
    assert strand_homes(replace(view, instances=reported)).cached[M] < 0.01
    elsewhere = replace(empty, cached_tokens=2e7)
    reported = tuple(
        replace(each, prompts=() if each.id == home else (elsewhere,)) for each in view.instances
    )
    assert strand_homes(replace(view, instances=reported)).cached[M] == CACHED_PRIOR, "of homes alone"


def test_there_is_a_strand_for_each_instance_with_the_model_up_to_a_limit() -> None:
    assert strand_counts(view_of(names=("a",)), [M, N]) == {}
    assert strand_counts(view_of(names=NAMES), [M, N]) == {M: 3}
    many = tuple(f"gpu-{number}" for number in range(STRANDS_MAX + 5))
    assert strand_counts(view_of(names=many), [M]) == {M: STRANDS_MAX}


def test_strands_come_at_once_and_go_late() -> None:
    state = with_strands(NOTHING_COUNTED, view_of(names=("a", "b")), NOW_NS)
    assert state.clusters.strands == {M: 2}
    state = with_strands(state, view_of(names=NAMES), NOW_NS)
    assert state.clusters.strands == {M: 3}
    assert with_strands(state, view_of(names=NAMES), NOW_NS + 1) is state
    state = with_strands(state, view_of(names=("a",)), NOW_NS)
    assert with_strands(state, view_of(names=("a",)), NOW_NS + HOLD_NS - 1).clusters.strands == {M: 3}
    back = with_strands(state, view_of(names=NAMES), NOW_NS + HOLD_NS - 1)
    assert with_strands(back, view_of(names=("a",)), NOW_NS + HOLD_NS).clusters.strands == {M: 3}
    assert with_strands(state, view_of(names=("a",)), NOW_NS + HOLD_NS).clusters.strands == {}


def test_strands_are_published_and_former_versions_publish_none() -> None:
    published = Clusters(strands={M: 3})
    assert CLUSTERS.decode(CLUSTERS.encode(published)) == published
    former = clusters_to_plain(published)
    del former["strands"]
    assert clusters_from_plain(former) == Clusters()


@pytest.mark.parametrize("strands", [1, STRANDS_MAX + 1, "2", True])
def test_unsound_numbers_of_strands_are_refused(strands: object) -> None:
    with pytest.raises(InvalidValueError):
        clusters_from_plain(clusters_to_plain(Clusters()) | {"strands": {M: strands}})
