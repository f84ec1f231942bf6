"""Histograms of the gateway against those of prometheus_client."""

import re

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from qlm.gateway.observability.histogram import LabelledHistogram

BUCKETS = (0.1, 0.25, 1, 10, 3600)

values = st.sampled_from([0.0, *BUCKETS, 1e9]) | st.floats(0, 1e6, allow_nan=False)
observations = st.lists(st.tuples(st.sampled_from(["a", 'b"\n']), values), max_size=30)


def shown(registry: CollectorRegistry) -> bytes:
    """What a scrape gets, but for the times at which metrics were created."""
    return re.sub(rb"(_created\{.*\}) \S+", rb"\1 then", generate_latest(registry))


@given(seen=observations)
def test_they_are_shown_as_those_of_the_library(seen: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    cheap = LabelledHistogram(ours, "h_seconds", "About it", ("model", "slo_class"), buckets=BUCKETS)
    usual = Histogram("h_seconds", "About it", ("model", "slo_class"), registry=theirs, buckets=BUCKETS)
    for model, value in seen:
        cheap.labels(model, "batch").observe(value)
        usual.labels(model, "batch").observe(value)
    assert shown(ours) == shown(theirs)
    if seen:
        assert b"h_seconds_sum" in shown(ours)
