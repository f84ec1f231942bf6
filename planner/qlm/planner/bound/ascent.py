"""Incremental subgradient ascent of the Lagrangian dual, in compiled code; see `dual`."""

import numpy as np

from qlm.planner.arrays import Floats, Ints
from qlm.planner.bound.charge import Charges
from qlm.planner.bound.dual import NEVER, best_start, model_prices
from qlm.planner.bound.isotonic import never_rising
from qlm.planner.compiling.compiled import compiled
from qlm.planner.compiling.refcounts import without_refcounts


@compiled()
def ascend(
    c: Charges,
    edges: Floats,
    capacity: Floats,
    loaded: Floats,
    surcharge: Floats,
    table: Floats,
    order: Ints,
    base: Floats,
    passes: int,
    step: float,
) -> tuple[Floats, Floats]:
    """Improve prices: each group in turn raises those of the capacity it would use, then all prices fall.

    Args:
        c: The charges.
        edges: Grid of times; (J + 1,).
        capacity: Instance seconds; (K, J).
        loaded: Instance seconds of instances that have a model loaded; (K, M, J).
        surcharge: Swap seconds per second of service on others; (K, M, J).
        table: Result of `charge_table`.
        order: Order of the groups in a pass; (G,).
        base: First prices of an instance; (K, J).
        passes: Passes over all groups.
        step: First step size.

    Returns:
        Mean prices of the second half of the passes, made non-increasing, (K, J); and the share of the
        surcharge that each model pays, (K, M, J).
    """
    c, edges, capacity, loaded = without_refcounts((c, edges, capacity, loaded))
    surcharge, table, order, base = without_refcounts((surcharge, table, order, base))
    kinds, models, steps = surcharge.shape
    base, total = base.copy(), np.zeros((kinds, steps))
    part = np.ones((kinds, models, steps))
    used = np.zeros((kinds, models, steps))
    for turn in range(passes):
        shares = part * surcharge
        available = capacity + (shares * loaded).sum(axis=1)
        flat = _flattened(base, capacity)
        swaps = model_prices(flat, shares)
        for m in range(models):
            swaps[:, m] -= flat
        used[:] = 0.0
        late = 2 * turn >= passes
        for g in order:
            m = c.model[g]
            k, start = _cheapest(c, g, edges, base, swaps, table)
            end = start + c.service_s[k, g]
            for j in range(steps):
                taken = max(0.0, min(end, edges[j + 1]) - max(start, edges[j]))
                used[k, m, j] += taken
                if available[k, j] > 0.0:
                    base[k, j] += step / (1.0 + turn) * taken * (1.0 + shares[k, m, j]) / available[k, j]
            base = np.maximum(0.0, base - step / (1.0 + turn) / len(order))
            if late:
                total += base
        _adapt(part, used, loaded)
    rounds = (passes - (passes + 1) // 2) * len(order)
    return _flattened(total / max(1, rounds), capacity), part


@compiled()
def _cheapest(
    c: Charges, g: int, edges: Floats, base: Floats, swaps: Floats, table: Floats
) -> tuple[int, float]:
    """Return the lane type and start of a group that are cheapest at these prices."""
    kinds, steps = base.shape
    m, best, best_k, best_s = c.model[g], NEVER, -1, 0.0
    prices, until = np.empty(steps), np.zeros(steps + 1)
    for k in range(kinds):
        if not c.runs[k, g]:
            continue
        for j in range(steps):
            prices[j] = base[k, j] + swaps[k, m, j]
            until[j + 1] = until[j] + prices[j] * (edges[j + 1] - edges[j])
        cost, start = best_start(c, k, g, edges, prices, until, table[k, g])
        if cost < best:
            best, best_k, best_s = cost, k, start
    return best_k, best_s


@compiled()
def _flattened(base: Floats, capacity: Floats) -> Floats:
    flat = np.empty_like(base)
    for k in range(base.shape[0]):
        flat[k] = never_rising(base[k], capacity[k])
    return flat


@compiled()
def _adapt(part: Floats, used: Floats, loaded: Floats) -> None:
    """Raise the share of swaps that a model pays if it does more work than instances with it loaded can."""
    kinds, models, steps = part.shape
    for k in range(kinds):
        for m in range(models):
            done, could = 0.0, 0.0
            for j in range(steps):
                done += used[k, m, j]
                could += loaded[k, m, j]
                if could > 0.0:
                    part[k, m, j] = min(1.0, max(0.0, part[k, m, j] + 0.5 * (done / could - 1.0)))
