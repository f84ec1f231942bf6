"""What of the core shows only with a clock at hand: how long results and old entries last."""

from dataclasses import replace

from qlm.domain.outcome import Outcome
from qlm.domain.slo import DeadlineSlo
from qlm.store.contract_values import ARRIVAL_NS, card
from qlm.store.core import StoreCore
from qlm.store.limits import StoreLimits

SECOND_NS = 1_000_000_000


def test_results_are_kept_for_their_time_and_no_longer() -> None:
    core = StoreCore(1, StoreLimits(result_ttl_s=10.0))
    for n in (1, 2, 3):
        core.enqueue(card(n), None, ARRIVAL_NS)
    core.cancel(card(1).id, Outcome.CANCELLED, ARRIVAL_NS)
    _, effects = core.cancel(card(2).id, Outcome.CANCELLED, ARRIVAL_NS + 10 * SECOND_NS - 1)
    assert effects.dropped == []
    _, effects = core.expire(ARRIVAL_NS + 10 * SECOND_NS)
    assert effects.dropped == [card(1).id]
    assert core.record(card(1).id) is None
    assert core.record(card(2).id) is not None
    core.expire(ARRIVAL_NS + 1000 * SECOND_NS)
    assert core.record(card(2).id) is None
    assert core.record(card(3).id) is not None


def test_a_request_that_reuses_an_id_does_not_inherit_its_deadline() -> None:
    core = StoreCore(1, StoreLimits(results_max=1))
    core.enqueue(card(1, drop=True), None, ARRIVAL_NS)
    for n in (1, 2):
        core.enqueue(card(n), None, ARRIVAL_NS)
        core.cancel(card(n).id, Outcome.CANCELLED, ARRIVAL_NS)
    later = replace(card(1, drop=True), slo=DeadlineSlo(deadline_ms=60_000.0))
    assert core.enqueue(later, None, ARRIVAL_NS)[0].created
    assert core.expire(card(1, drop=True).drop_at_ns or 0)[0] == []
    assert core.expire(later.drop_at_ns or 0)[0] == [later.id]
