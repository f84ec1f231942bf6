"""Label values of metrics by class, bounded: a client may write any number of objectives."""

from typing import Final

from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId

INSTANCE_LABEL: Final = "qlm_instance"
"""Label for the name of an LLM serving instance; `instance` is what Prometheus calls a process."""

OTHER: Final = "other"
"""The label that all classes share which came when there were enough."""

CLASSES_MAX: Final = 100
"""Objectives that get a label of their own, unless told otherwise."""

LATENCY_BUCKETS_S: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800),
    *(3600, 3 * 3600, 8 * 3600, 24 * 3600),
)
"""Buckets of what is as long as objectives are: 10 ms (a first token) to a day (batch work)."""


class ClassLabels:
    """Gives each class the labels `model` and `slo_class`."""

    def __init__(self, classes_max: int = CLASSES_MAX) -> None:
        """Begin with no class.

        Args:
            classes_max: Objectives that get a label of their own; later ones share `OTHER`.
        """
        self._classes_max = classes_max
        self._known: dict[tuple[ModelId, str], tuple[str, str]] = {}
        self._classes: set[str] = set()

    def of(self, cls: RequestClass) -> tuple[str, str]:
        """Return model and objective."""
        key = (cls.model, cls.slo)
        if (labels := self._known.get(key)) is not None:
            return labels
        if cls.slo not in self._classes:
            if len(self._classes) >= self._classes_max:
                return (str(cls.model), OTHER)
            self._classes.add(cls.slo)
        return self._known.setdefault(key, (str(cls.model), cls.slo))
