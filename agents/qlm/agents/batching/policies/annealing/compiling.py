"""The search as the interpreter runs it, or compiled where numba is installed."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import numpy as np

from qlm.agents.batching.policies.annealing import kernel

Anneal = Callable[..., int]

_HELPERS: Final = ("score", "batch_of", "elsewhere", "fits", "swaps", "effective", "apply", "revert", "copy")
"""Functions of the kernel, each behind those that it calls."""

_SOURCES: Final = Path(__file__).parent


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
    compiled = import_module("qlm.planner.compiling.compiled").compiled
    scope: dict[str, Any] = dict(vars(kernel))
    scope["uncounted"] = import_module("qlm.planner.compiling.refcounts").without_refcounts
    for name in (*_HELPERS, "anneal"):
        copied = FunctionType(getattr(kernel, name).__code__, scope, name)
        copied.__module__ = kernel.__name__
        inline = "never" if name == "anneal" else "always"
        scope[name] = compiled(sources=(_SOURCES,), error_model="numpy", inline=inline)(copied)
    annealed: Anneal = scope["anneal"]
    _call_once(annealed)
    return annealed


def _call_once(anneal: Anneal) -> None:
    """Compile for the types that searches have."""
    order, first, best_order = (np.zeros(size, dtype=np.int64) for size in (1, 3, 1))
    first[1:] = 1
    table, price = np.ones(1), np.ones(6)
    anneal(
        order, first, 1, 1, 1, table, table, table, 1.0, 1.0, table[:0], table[:0], price, price.copy(),
        best_order, first.copy(),
    )  # fmt: skip
