"""Rules that assign SLO classes, as indices, to the requests of a stream."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qlm.domain.errors import InvalidValueError
from qlm.simulator.scenario import IntArray
from qlm.simulator.workload.trace import Labels

Shares = tuple[tuple[int, float], ...]
"""Pairs of class and share; the shares sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """Inputs of the rules, shape (requests,) each.

    Attributes:
        model: Index in `Scenario.models`.
        prompt_tokens: Prompt lengths after limits.
        slo_class: The trace's own classes, if it has such a column.
    """

    model: IntArray
    tenant: Labels
    prompt_tokens: IntArray
    slo_class: Labels | None = None


class SloRule(Protocol):
    """Rule that assigns classes to requests."""

    def classes(self, requests: Requests, rng: np.random.Generator) -> IntArray:
        """Return the class of each request."""
        ...


@dataclass(frozen=True, slots=True)
class Always:
    """Same class for all requests."""

    slo_class: int

    def classes(self, requests: Requests, rng: np.random.Generator) -> IntArray:
        """Return the class of each request."""
        return np.full(len(requests.model), self.slo_class, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ByShares:
    """Class drawn for each request."""

    shares: Shares

    def classes(self, requests: Requests, rng: np.random.Generator) -> IntArray:
        """Return the class of each request."""
        return _pick(self.shares, rng.random(len(requests.model)))


@dataclass(frozen=True, slots=True)
class ByModel:
    """Class drawn for each request by the shares of its model.

    Attributes:
        shares: Shares by model index.
    """

    shares: Mapping[int, Shares]

    def classes(self, requests: Requests, rng: np.random.Generator) -> IntArray:
        """Return the class of each request."""
        drawn = rng.random(len(requests.model))
        classes = np.zeros(len(drawn), dtype=np.int64)
        for model in np.unique(requests.model).tolist():
            mine = requests.model == model
            classes[mine] = _pick(self.shares[model], drawn[mine])
        return classes


@dataclass(frozen=True, slots=True)
class ByTenant:
    """Class by tenant: chosen by a hash of its name, independent of the seed."""

    shares: Shares

    def classes(self, requests: Requests, rng: np.random.Generator) -> IntArray:
        """Return the class of each request."""
        places = np.array([_place(name) for name in requests.tenant.names])
        return _pick(self.shares, places)[requests.tenant.codes]


@dataclass(frozen=True, slots=True)
class ByPrompt:
    """Class by prompt length.

    Attributes:
        steps: Pairs of longest prompt and class, in increasing order.
        above: Class of longer prompts.
    """

    steps: tuple[tuple[int, int], ...]
    above: int

    def classes(self, requests: Requests, rng: np.random.Generator) -> IntArray:
        """Return the class of each request."""
        limits = [tokens for tokens, _ in self.steps]
        classes = np.array([*(each for _, each in self.steps), self.above], dtype=np.int64)
        return classes[np.searchsorted(limits, requests.prompt_tokens, side="left")]


@dataclass(frozen=True, slots=True)
class ByColumn:
    """Class by a column of the trace.

    Attributes:
        class_of: Class by value of the column.
    """

    class_of: Mapping[str, int]

    def classes(self, requests: Requests, rng: np.random.Generator) -> IntArray:
        """Return the class of each request."""
        assert requests.slo_class is not None
        codes, names = requests.slo_class.codes, requests.slo_class.names
        by_code = np.array([self.class_of.get(name, 0) for name in names], dtype=np.int64)
        return by_code[codes]


def check_shares(field: str, shares: Mapping[str, float]) -> None:
    """Raise an error unless shares are a partition.

    Raises:
        InvalidValueError: One is negative, or their sum is not 1.
    """
    if any(not share >= 0 for share in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        raise InvalidValueError(field, dict(shares), "shares of 0 or more whose sum is 1")


def _pick(shares: Shares, places: np.ndarray) -> IntArray:
    ends = np.cumsum([share for _, share in shares])
    index = np.minimum(np.searchsorted(ends, places, side="right"), len(shares) - 1)
    return np.array([each for each, _ in shares], dtype=np.int64)[index]


def _place(name: str) -> float:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6]) / 2**48
