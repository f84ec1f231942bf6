"""Forecasts for agents: when they are sent, and which instance expects the arrivals of a model."""

from dataclasses import replace

import pytest

from qlm.controller.core.estimating.arrivals import Arrivals
from qlm.controller.core.estimating.snapshot import take_snapshot
from qlm.controller.core.estimating.state import NOTHING_LEARNED, learn
from qlm.controller.core.forecasting import Residents, forecast_changes
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import InstanceId
from qlm.domain.length_histogram import NO_LENGTHS
from qlm.domain.virtual_queue import VirtualQueue
from support.estimating import (
    CHAT,
    NOW_NS,
    M,
    N,
    class_view,
    cluster,
    first_snapshot,
    groups_of,
    instance,
    steady_fleet,
)


@pytest.mark.parametrize(("factor", "sent"), [(1.0, False), (1.05, False), (1.2, True)])
def test_agents_get_forecasts_again_when_a_figure_has_changed(factor: float, sent: bool) -> None:
    groups = groups_of(CHAT, 5)
    view = cluster(class_view(CHAT, NO_LENGTHS, *groups), instances=(instance(),), queues={"gpu-0": groups})
    fleet = steady_fleet(16)
    now = first_snapshot(view, fleet)
    (first,) = forecast_changes(view, now)
    (only,) = first.forecasts
    assert (only.cls, only.rate_rps) == (CHAT, 0.0)
    assert only.service_s > 0 and only.answer_s > only.service_s
    known = tuple(replace(each, service_s=each.service_s * factor) for each in first.forecasts)
    queue = VirtualQueue(instance=InstanceId("gpu-0"), forecasts=known)
    assert bool(list(forecast_changes(replace(view, queues=(queue,)), now))) is sent


def shares_of(
    *instances: InstanceStatus, rate_rps: float, queues: dict[str, int] | None = None
) -> dict[str, float]:
    """Return the share of the arrivals for M on each instance; the rate is in busy instances."""
    fleet, groups = steady_fleet(16), groups_of(CHAT, 1, 1)
    queued = {id: groups[at : at + 1] for id, at in (queues or {}).items()}
    view = cluster(class_view(CHAT, NO_LENGTHS, *groups), instances=instances, queues=queued)
    state = learn(NOTHING_LEARNED, view, now_ns=NOW_NS, fleet=fleet)
    (service_s,) = (entry.times.request_s for (cls, _), entry in state.times.entries.items() if cls == CHAT)
    rate = rate_rps / service_s
    known = Arrivals(NOW_NS, 9, asked=60 * rate, asked_s=60.0, past=60 * rate, past_s=60.0, present_ns=NOW_NS)
    state = replace(state, arrivals={CHAT: known})
    now = take_snapshot(view, now_ns=NOW_NS, fleet=fleet, state=state)
    residents = Residents(now)
    return {id: round(residents.share(M, each), 3) for id, each in now.instances.items()}


def test_arrivals_are_expected_where_a_model_is_needed_and_a_twin_with_time_is_free_to_leave() -> None:
    """Each of two instances counted on half of its arrivals, and both stayed idle beside work."""
    twins = instance("i"), instance("j", running=1)
    assert shares_of(*twins, rate_rps=0.5) == {"i": 0.0, "j": 1.0}
    assert shares_of(*twins, rate_rps=1.2) == {"i": 0.5, "j": 0.5}


def test_who_could_load_a_model_gets_what_those_that_have_it_cannot_serve() -> None:
    here, other = instance("i", running=1), instance("j", active=N)
    assert shares_of(here, other, rate_rps=0.5) == {"i": 1.0, "j": 0.0}
    assert shares_of(here, other, rate_rps=1.4) == {"i": 1.0, "j": 0.5}


def test_arrivals_of_a_model_that_is_loaded_nowhere_are_expected_where_it_waits() -> None:
    others = instance("i", active=N), instance("j", active=N)
    assert shares_of(*others, rate_rps=0.5, queues={"j": 0}) == {"i": 0.0, "j": 1.0}
    assert shares_of(*others, rate_rps=0.5, queues={"i": 0, "j": 1}) == {"i": 0.5, "j": 0.5}
    assert shares_of(*others, rate_rps=0.5) == {"i": 0.5, "j": 0.5}
