"""Arrival rates of classes: bursts after a restart, and stores that count anew."""

from dataclasses import replace

import pytest

from qlm.controller.core.estimating.arrivals import Arrivals, present_rates, update_arrivals
from qlm.domain.view import ClassView
from support.estimating import CHAT, NOW_NS, S, seen, view_of


def test_a_burst_after_a_restart_is_not_taken_for_the_rate_of_the_hours_before() -> None:
    steady = Arrivals(NOW_NS, 10, asked=300.0, asked_s=300.0, past=7000.0, past_s=7000.0, present_ns=NOW_NS)
    later_ns = NOW_NS + 1200 * S
    quiet = update_arrivals(view_of(), later_ns, {CHAT: steady})[CHAT]
    burst = quiet.read(10, later_ns + 10 * S, 50)
    alone = Arrivals(later_ns, 10).read(10, later_ns + 10 * S, 50)
    assert alone.accepted_rps == pytest.approx(5.0)
    assert burst.accepted_rps < 1.0


@pytest.mark.parametrize("first", [(), (seen(CHAT),)], ids=["a-new-class", "a-known-class"])
def test_requests_within_milliseconds_are_no_rate_of_thousands(first: tuple[ClassView, ...]) -> None:
    """The rate of a controller's first second was 14 requests over 11 ms: 1272 per second."""
    ms = S // 1000
    known = update_arrivals(view_of(*(replace(each, finished=0, accepted=0) for each in first)), NOW_NS, {})
    burst = view_of(replace(seen(CHAT), finished=0, accepted=14))
    known = update_arrivals(burst, NOW_NS + 11 * ms, known, NOW_NS)
    assert 0 < present_rates(burst, NOW_NS + 11 * ms, known)[CHAT] < 14


@pytest.mark.parametrize(("ended", "accepted"), [(3000, 3000), (0, 40)], ids=["restarted", "emptied"])
def test_a_store_that_counts_anew_leaves_the_rates_as_they_were(ended: int, accepted: int) -> None:
    """The embedded store counts its kept results again after a restart, an emptied one what is indexed."""
    known = {CHAT: Arrivals(NOW_NS, 4000, accepted=4000, present_ns=NOW_NS)}

    def reading(at_s: int, total: int, count: int) -> None:
        view = view_of(replace(seen(CHAT), finished=total, accepted=count))
        known.update(update_arrivals(view, NOW_NS + at_s * S, known))

    for at_s in range(10, 1000, 10):
        reading(at_s, 4000 + at_s, 4000 + at_s)
    before = known[CHAT]
    assert before.accepted_rps == pytest.approx(1.0) and before.rate_rps == pytest.approx(1.0)
    for at_s in range(1000, 1600, 10):
        reading(at_s, ended + at_s - 1000, accepted + at_s - 1000)
        after = known[CHAT]
        assert after.accepted_rps == pytest.approx(1.0) and after.rate_rps == pytest.approx(1.0)
        assert after.dispersion == pytest.approx(before.dispersion, abs=0.1)


def test_readings_of_a_clock_that_was_ahead_stop_no_rate() -> None:
    """A history may come from a controller on another machine."""
    ahead_ns = NOW_NS + 1800 * S
    known = Arrivals(ahead_ns, 100, accepted=100, asked=60.0, asked_s=60.0, present_ns=ahead_ns)
    rates = {CHAT: known}
    for at_s in range(0, 600, 10):
        view = view_of(replace(seen(CHAT), finished=100 + 2 * at_s, accepted=110 + 2 * at_s))
        rates |= update_arrivals(view, NOW_NS + at_s * S, rates)
    assert rates[CHAT].accepted_rps == pytest.approx(2.0, rel=0.2)
    assert rates[CHAT].rate_rps == pytest.approx(2.0, rel=0.01)
    silent = update_arrivals(view_of(), NOW_NS, {CHAT: known})
    assert not update_arrivals(view_of(), NOW_NS + 3600 * S, silent), "silent for an hour by this clock"
