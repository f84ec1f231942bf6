"""Token clusters of request classes (QLM, algorithm 1), as the controller publishes them for gateways."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.plain import class_to_plain
from qlm.domain.formats.published import Published
from qlm.domain.formats.strands import STRANDS_MAX, TaskName, in_strand, strand_of_task
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.domain.ports.published import PublishedKind

Thresholds = tuple[int, ...]
"""Prompt lengths in tokens, ascending: each the longest of its cluster; the last cluster has no end."""

VERSION: Final = 1

ALL: Final = "all"
"""Cluster of a class that is not divided."""

THRESHOLDS_MAX: Final = 2
"""Each cluster costs a queue, a group and a place in each plan."""

CLASSES_MAX: Final = 100
"""Most divided classes."""

TOKENS_MAX: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """The division of classes by the length of their prompts, and of tasks into strands.

    Attributes:
        fixed: Thresholds of models as configured, for all their classes; empty ones divide nothing.
        found: Thresholds of classes of the other models, under the class with the cluster `all`.
        strands: Strands of the tasks of models, two or more; tasks of other models are not divided.
    """

    fixed: Mapping[ModelId, Thresholds] = field(default_factory=dict)
    found: Mapping[RequestClass, Thresholds] = field(default_factory=dict)
    strands: Mapping[ModelId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for thresholds in (*self.fixed.values(), *self.found.values()):
            check_thresholds("clusters.thresholds", thresholds)
        if len(self.found) > CLASSES_MAX:
            raise InvalidValueError("clusters.found", len(self.found), f"at most {CLASSES_MAX} classes")
        for strands in self.strands.values():
            if type(strands) is not int or not 2 <= strands <= STRANDS_MAX:
                raise InvalidValueError("clusters.strands", strands, f"whole numbers from 2 to {STRANDS_MAX}")

    def of(self, cls: RequestClass, prompt_tokens: int, task: TaskName | None = None) -> RequestClass:
        """Return the class of a request with such a prompt, given its class with the cluster `all`."""
        cls = self._by_length(cls, prompt_tokens)
        strands = 0 if task is None else self.strands.get(cls.model, 0)
        return cls if task is None or not strands else in_strand(cls, strand_of_task(task, strands))

    def _by_length(self, cls: RequestClass, prompt_tokens: int) -> RequestClass:
        if not self.fixed and not self.found:
            return cls
        thresholds = self.fixed.get(cls.model)
        if thresholds is None:
            thresholds = self.found.get(cls, ())
        return _in_cluster(cls, cluster_name(thresholds, prompt_tokens)) if thresholds else cls


NO_CLUSTERS: Final = Clusters()
"""No class is divided."""


def check_thresholds(name: str, thresholds: Thresholds) -> Thresholds:
    """Return thresholds that are sound.

    Raises:
        InvalidValueError: They are too many, not ascending, or out of range.
    """
    if len(thresholds) > THRESHOLDS_MAX:
        raise InvalidValueError(name, thresholds, f"at most {THRESHOLDS_MAX} lengths")
    if any(type(each) is not int or not 1 <= each <= TOKENS_MAX for each in thresholds):
        raise InvalidValueError(name, thresholds, f"whole numbers from 1 to {TOKENS_MAX}")
    if any(low >= high for low, high in pairwise(thresholds)):
        raise InvalidValueError(name, thresholds, "ascending lengths")
    return thresholds


def cluster_name(thresholds: Thresholds, prompt_tokens: int) -> str:
    """Return the cluster of a prompt: `to-2048`, `2049-8192`, `over-8192`; `all` without thresholds.

    A name says which lengths it has, so a class keeps its meaning, and what was learned of it, when others
    are divided anew.
    """
    if not thresholds:
        return ALL
    at = bisect_left(thresholds, prompt_tokens)
    if at == 0:
        return f"to-{thresholds[0]}"
    if at == len(thresholds):
        return f"over-{thresholds[-1]}"
    return f"{thresholds[at - 1] + 1}-{thresholds[at]}"


@lru_cache(maxsize=1024)
def undivided(cls: RequestClass) -> RequestClass:
    """Return the class with the cluster `all`."""
    return replace(cls, cluster=ALL)


@lru_cache(maxsize=1024)
def _in_cluster(cls: RequestClass, cluster: str) -> RequestClass:
    return replace(cls, cluster=cluster)


def clusters_to_plain(clusters: Clusters) -> dict[str, Any]:
    """Write them as dicts, lists, numbers and strings."""
    return {
        "version": VERSION,
        "fixed": {model: list(thresholds) for model, thresholds in clusters.fixed.items()},
        "found": [
            {"cls": class_to_plain(cls), "thresholds": list(thresholds)}
            for cls, thresholds in clusters.found.items()
        ],
        "strands": dict(clusters.strands),
    }


def clusters_from_plain(plain: Any) -> Clusters:
    """Read what `clusters_to_plain` wrote; fields of later versions are left out.

    Raises:
        InvalidValueError: A field is missing, of the wrong type or out of range.
    """
    try:
        if plain["version"] != VERSION:
            raise InvalidValueError("clusters.version", plain["version"], str(VERSION))
        return Clusters(
            fixed={ModelId(model): tuple(each) for model, each in plain["fixed"].items()},
            found={RequestClass(**each["cls"]): tuple(each["thresholds"]) for each in plain["found"]},
            # Former versions do not write it.
            strands={ModelId(model): each for model, each in plain.get("strands", {}).items()},
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidValueError("clusters", repr(error), "what clusters_to_plain wrote") from error


CLUSTERS: Final = Published(
    kind=PublishedKind.CLUSTERS, to_plain=clusters_to_plain, from_plain=clusters_from_plain
)
