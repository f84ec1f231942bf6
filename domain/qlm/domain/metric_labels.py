"""Labels of metrics by class; their number is bounded, since clients choose objectives freely."""

from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId

INSTANCE_LABEL: Final = "qlm_instance"
"""Label for the name of an LLM serving instance; `instance` is what Prometheus calls a process."""

CLASS_LABEL: Final = "slo_class"
"""Label for an objective."""

OTHER: Final = "other"
"""Label shared by all objectives beyond the limit."""

CLASSES_MAX: Final = 100
"""Default number of objectives with a label of their own."""

LATENCY_BUCKETS_S: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800),
    *(3600, 3 * 3600, 8 * 3600, 24 * 3600),
)
"""Histogram buckets for latencies with objectives: 10 ms (a first token) to a day (batch work)."""


class ClassLabels:
    """Assigns each class its labels `model` and `slo_class`; objectives over the limit share `OTHER`."""

    def __init__(self, classes_max: int = CLASSES_MAX) -> None:
        self._classes_max = classes_max
        self._known: dict[tuple[ModelId, str], tuple[str, str]] = {}
        self._classes: set[str] = set()

    def of(self, cls: RequestClass) -> tuple[str, str]:
        """Return the labels of a class: model and objective."""
        key = (cls.model, cls.slo)
        if (labels := self._known.get(key)) is not None:
            return labels
        if cls.slo not in self._classes:
            if len(self._classes) >= self._classes_max:
                return (str(cls.model), OTHER)
            self._classes.add(cls.slo)
        return self._known.setdefault(key, (str(cls.model), cls.slo))
