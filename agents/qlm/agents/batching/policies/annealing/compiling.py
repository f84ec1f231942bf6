"""The search as the interpreter runs it, or compiled where numba is installed."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType
from typing import Any, Final

import numpy as np

from qlm.agents.batching.policies.annealing import kernel

Anneal = Callable[..., int]

_HELPERS: Final = ("score", "batch_of", "elsewhere", "fits", "swaps", "effective", "apply", "revert", "copy")
"""Functions of the kernel, each behind those that it calls."""


@cache
def can_compile() -> bool:
    """Return whether numba is installed: it is an optional package of agents."""
    return find_spec("numba") is not None


def annealer(*, compiled: bool) -> Anneal:
    """Return `kernel.anneal`, as it is or compiled; both return the same bits.

    Compiling takes seconds where numba's cache does not have it, and happens here.
    """
    return _compiled() if compiled else kernel.anneal


@cache
def _compiled() -> Anneal:
    njit = import_module("numba").njit
    scope: dict[str, Any] = dict(vars(kernel))
    scope["uncounted"] = import_module("qlm.planner.refcounts").without_refcounts
    for name in (*_HELPERS, "anneal"):
        copied = FunctionType(getattr(kernel, name).__code__, scope, name)
        copied.__module__ = kernel.__name__
        scope[name] = cached(njit, copied, inline="never" if name == "anneal" else "always")
    compiled: Anneal = scope["anneal"]
    _call_once(compiled)
    return compiled


def cached(njit: Callable[..., Any], function: FunctionType, *, inline: str) -> Any:
    """Return the compiled function, kept in numba's cache if there is a folder to write to."""
    options = {"nogil": True, "error_model": "numpy", "inline": inline}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder
        return njit(**options)(function)


def _call_once(anneal: Anneal) -> None:
    """Compile for the types that searches have."""
    order, first, best_order = (np.zeros(size, dtype=np.int64) for size in (1, 3, 1))
    first[1:] = 1
    table, price = np.ones(1), np.ones(6)
    anneal(
        order, first, 1, 1, 1, table, table, table, 1.0, 1.0, table[:0], table[:0], price, price.copy(),
        best_order, first.copy(),
    )  # fmt: skip
