"""What promtool checks of an exposition, and what QLM asks of its own metrics beyond that."""

import re
from collections import Counter
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

_NAME = re.compile(r"qlm_[a-z][a-z0-9_]*")
_LABEL = re.compile(r"[a-z][a-z_]*")
_DERIVED = ("_milliseconds", "_minutes", "_hours", "_ms", "_sec", "_kilobytes", "_percent", "_bits")
_KINDS = {"counter", "gauge", "histogram", "summary"}
_TARGET_LABELS = {"instance", "job", "le", "quantile"}
"""Labels that Prometheus itself sets, so that ours would be renamed."""

SERIES_MAX = 1000
"""Series of one metric in the small fleets of tests: more means that some label is not bounded."""


def read(text: str) -> dict[str, Metric]:
    """Parse an exposition; counters are named with their `_total`."""
    families = list(text_string_to_metric_families(text))
    names = [_exposed(family) for family in families]
    twice = [name for name, count in Counter(names).items() if count > 1]
    assert twice == [], "a metric is there twice"
    return dict(zip(names, families, strict=True))


def problems(text: str) -> list[str]:
    """Say what is wrong with the metrics of QLM in an exposition."""
    ours = {name: family for name, family in read(text).items() if name.startswith("qlm_")}
    assert ours, "no metric of QLM is there"
    return [f"{name}: {what}" for name, family in ours.items() for what in _problems(name, family)]


def value(text: str, name: str, **labels: str) -> float:
    """Sum the samples of a metric that have these labels.

    Raises:
        KeyError: There is no such sample.
    """
    found = [
        sample.value
        for family in read(text).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    if not found:
        raise KeyError(f"{name}{labels}")
    return sum(found)


def _exposed(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else str(family.name)


def _problems(name: str, family: Metric) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield "the name is not in snake case with the prefix qlm_"
    if not family.documentation:
        yield "it has no help"
    if family.type not in _KINDS:
        yield f"its type is {family.type}"
    if family.type != "counter" and name.endswith(("_total", "_count", "_sum", "_bucket")):
        yield f"a {family.type} has the suffix of another type"
    if family.type in ("histogram", "summary") and not name.endswith(("_seconds", "_ratio")):
        yield "the name does not end in its unit"
    if name.removesuffix("_total").endswith(_DERIVED):
        yield "the unit is no base unit"
    if len(family.samples) > SERIES_MAX:
        yield f"it has {len(family.samples)} series"
    for label in {label for sample in family.samples for label in sample.labels}:
        bucket = label == "le" and family.type == "histogram"
        if not _LABEL.fullmatch(label) or (label in _TARGET_LABELS and not bucket):
            yield f"it has the label {label}"
