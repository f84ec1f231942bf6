"""Losses that a placement counts between its decisions."""

from collections.abc import Sequence
from dataclasses import replace

from qlm.controller.core.estimating.arrivals import KEPT_S
from qlm.controller.core.estimating.state import NOTHING_LEARNED, EstimatorState, learn
from qlm.controller.core.placement.losses import FORGOTTEN_MAX, counted, lost_since
from qlm.controller.core.placement.placing import update_placement
from qlm.domain.group import RequestClass
from qlm.domain.length_histogram import NO_LENGTHS
from qlm.domain.view import ClassView
from qlm.planner.placement.policy import EVERY_S, PlacementState
from support.estimating import CHAT, NOW_NS, STREAM, M, S, class_view, cluster, instance, steady_fleet

FLEET = steady_fleet(16)


def late(cls: RequestClass, accepted: int) -> ClassView:
    return ClassView(cls=cls.missed(), queued=1, groups=(), accepted=accepted)


def lost(*views: Sequence[ClassView], every_s: float = EVERY_S) -> list[float]:
    """Return what the placement has counted after each view."""
    state: EstimatorState = NOTHING_LEARNED
    placement, totals = PlacementState(homes={}, traffic_since_s=0.0), list[float]()
    for at, missed in enumerate(((), *views)):
        now_ns = NOW_NS + round(at * every_s * S)
        chat = replace(class_view(CHAT, NO_LENGTHS, ungrouped=1), accepted=30 * (at + 1))
        view = cluster(chat, *missed, instances=(instance(active=M),), queues={})
        state = learn(state, view, now_ns=now_ns, fleet=FLEET)
        placement = update_placement(placement, view, state, FLEET, now_ns)
        totals.append(placement.lost)
    return totals[1:]


def test_losses_count_after_the_counters_of_the_store_began_again() -> None:
    counts = (500, 600, 3, 10, 50)
    assert lost(*([late(CHAT, count)] for count in counts)) == [500, 600, 600, 607, 647]


def test_losses_of_one_class_count_while_another_is_forgotten() -> None:
    seen = [late(CHAT, 500)], [late(STREAM, 10)], [late(STREAM, 30)], [late(CHAT, 501), late(STREAM, 30)]
    assert lost(*seen, every_s=KEPT_S) == [500, 510, 530, 531]


def test_counts_of_forgotten_classes_are_bounded() -> None:
    before = {RequestClass(M, str(at)): 1 for at in range(FORGOTTEN_MAX + 5)}
    now = {CHAT: 2}
    assert len(counted(before, now)) == FORGOTTEN_MAX + 1
    assert lost_since(before, now) == 2
