"""Counters and levels of the gateway against those of prometheus_client."""

import re

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.exposition import generate_latest

from qlm.gateway.observability.counts import LabelledCounter, Level

counts = st.lists(st.tuples(st.sampled_from(["a", 'b"\n']), st.integers(0, 10**6)), max_size=20)


def shown(registry: CollectorRegistry) -> bytes:
    """What a scrape gets, but for the times at which metrics were created."""
    return re.sub(rb"(_created\{.*\}) \S+", rb"\1 then", generate_latest(registry))


@given(seen=counts)
def test_counters_are_shown_as_those_of_the_library(seen: list[tuple[str, int]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    cheap = LabelledCounter(ours, "done", "About it", ("model", "slo_class"))
    usual = Counter("done", "About it", ("model", "slo_class"), registry=theirs)
    for model, amount in seen:
        cheap.labels(model, "batch").inc(amount)
        usual.labels(model, "batch").inc(amount)
    assert shown(ours) == shown(theirs)
    if seen:
        assert b"done_total" in shown(ours)


def test_a_counter_is_shown_at_zero_once_asked_for() -> None:
    registry = CollectorRegistry()
    LabelledCounter(registry, "done", "About it", ("model",)).labels("a")
    assert registry.get_sample_value("done_total", {"model": "a"}) == 0


@given(opened=st.lists(st.booleans(), max_size=10))
def test_levels_are_shown_as_gauges_of_the_library(opened: list[bool]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    cheap, usual = Level(ours, "open", "About it"), Gauge("open", "About it", registry=theirs)
    for one in opened:
        for each in (cheap, usual):
            each.inc() if one else each.dec()
    assert shown(ours) == shown(theirs)
