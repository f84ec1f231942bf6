"""The Lagrangian dual of the relaxation, in compiled code: capacity has a price, groups choose their starts.

Shapes: K lane types, M models, G groups, J steps between the J + 1 times `edges`. Prices are per second of
service, at least 0 and non-increasing in time; behind the last edge they are 0. A model pays the price of
the instance and its share of swaps. All times are seconds.
"""

from typing import Final

import numpy as np

from qlm.planner.arrays import Floats
from qlm.planner.bound.charge import Charges, charge
from qlm.planner.compiling.compiled import compiled
from qlm.planner.compiling.refcounts import without_refcounts

NEVER: Final = np.inf

_HALVINGS: Final = 12
"""Most bisections of an interval of starts in the proof of a bound."""

_STACK: Final = _HALVINGS + 3


@compiled()
def charge_table(c: Charges, edges: Floats) -> Floats:
    """Return charges by step of starts, the last behind all edges; inf before `first_s`; (K, G, J + 1)."""
    c, edges = without_refcounts((c, edges))
    kinds, groups = c.runs.shape
    steps = len(edges) - 1
    table = np.full((kinds, groups, steps + 1), NEVER)
    for k in range(kinds):
        for g in range(groups):
            if not c.runs[k, g]:
                continue
            for j in range(steps + 1):
                until = edges[j + 1] if j < steps else np.inf
                if until > c.first_s[k, g]:
                    table[k, g, j] = charge(c, k, g, max(edges[j], c.first_s[k, g]), until)
    return table


@compiled()
def model_prices(base: Floats, shares: Floats) -> Floats:
    """Return the prices of each model, swaps included; (K, M, J).

    Args:
        base: Prices of an instance, never rising; (K, J).
        shares: Swap seconds per second of service done by the end of each step; (K, M, J).
    """
    kinds, models, steps = shares.shape
    prices = np.zeros(shares.shape)
    for k in range(kinds):
        for m in range(models):
            price = 0.0
            for j in range(steps - 1, -1, -1):
                after = base[k, j + 1] if j + 1 < steps else 0.0
                price += (base[k, j] - after) * (1.0 + shares[k, m, j])
                prices[k, m, j] = price
    return prices


@compiled()
def capacity_value(base: Floats, shares: Floats, capacity: Floats, loaded: Floats) -> float:
    """Return the value of all capacity: its price, and that of work that needs no swap."""
    kinds, models, steps = shares.shape
    worth = 0.0
    for k in range(kinds):
        for j in range(steps):
            worth += base[k, j] * capacity[k, j]
        for m in range(models):
            done = 0.0
            for j in range(steps):
                done += loaded[k, m, j]
                after = base[k, j + 1] if j + 1 < steps else 0.0
                worth += (base[k, j] - after) * shares[k, m, j] * done
    return worth


@compiled()
def totals(prices: Floats, edges: Floats) -> Floats:
    """Return the price of an instance from now until each edge; (K, M, J + 1)."""
    kinds, models, steps = prices.shape
    until = np.zeros((kinds, models, steps + 1))
    for k in range(kinds):
        for m in range(models):
            for j in range(steps):
                until[k, m, j + 1] = until[k, m, j] + prices[k, m, j] * (edges[j + 1] - edges[j])
    return until


@compiled()
def step_of(edges: Floats, at_s: float) -> int:
    """Return the step that contains a time; the number of steps if it is behind the last."""
    low, high = 0, len(edges) - 1
    if at_s >= edges[high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if edges[middle] <= at_s:
            low = middle
        else:
            high = middle
    return low


@compiled(inline="always")
def price_until(edges: Floats, prices: Floats, until: Floats, at_s: float) -> float:
    """Return the price of an instance from now until some time; arguments are rows of one type."""
    j = step_of(edges, at_s)
    if j == len(edges) - 1:
        return float(until[j])
    return float(until[j] + prices[j] * (at_s - edges[j]))


@compiled(inline="always")
def best_start(
    c: Charges, k: int, g: int, edges: Floats, prices: Floats, until: Floats, row: Floats
) -> tuple[float, float]:
    """Return the least charge and price over the tabulated starts of a group on a type, and the start."""
    steps = len(edges) - 1
    first, service_s = c.first_s[k, g], c.service_s[k, g]
    best, best_s = NEVER, first
    p = 0
    for j in range(step_of(edges, first), steps + 1):
        start = max(edges[j], first)
        end = start + service_s
        while p < steps and edges[p + 1] <= end:
            p += 1
        paid_end = until[p] + (prices[p] * (end - edges[p]) if p < steps else 0.0)
        paid_start = until[j] + (prices[j] * (start - edges[j]) if j < steps else 0.0)
        value = row[j] + (paid_end - paid_start)
        if value < best:
            best, best_s = value, start
    return best, best_s


@compiled(inline="always")
def least_cost(
    c: Charges,
    k: int,
    g: int,
    edges: Floats,
    prices: Floats,
    until: Floats,
    row: Floats,
    limit: float,
    tolerance: float,
) -> float:
    """Return a lower bound, to `tolerance`, on charge and price of a group on a type over all starts.

    Within an interval of starts, `charge` is a lower bound and, since prices never rise, the price is least
    at the end. Intervals that may contain less than the incumbent are bisected.
    A result above `limit` is only known to be above it.
    """
    steps = len(edges) - 1
    first, service_s = c.first_s[k, g], c.service_s[k, g]
    found, at_s = best_start(c, k, g, edges, prices, until, row)
    found += charge(c, k, g, at_s, at_s) - row[step_of(edges, at_s)]
    found = min(found, limit)
    least = row[steps] + price_until(edges, prices, until, max(edges[steps], first) + service_s)
    least -= price_until(edges, prices, until, max(edges[steps], first))
    least = min(least, found)
    stack = np.empty((_STACK, 3))
    for j in range(step_of(edges, first), steps):
        stack[0, 0], stack[0, 1], stack[0, 2] = max(edges[j], first), edges[j + 1], row[j]
        depth = 1
        while depth > 0:
            depth -= 1
            left, right, cost = stack[depth]
            paid = price_until(edges, prices, until, right + service_s) - price_until(
                edges, prices, until, right
            )
            value = cost + paid
            if value >= found - tolerance or right - left < 1e-6 * (1.0 + right) or depth > _HALVINGS:
                least = min(least, value)
                continue
            middle = 0.5 * (left + right)
            paid = price_until(edges, prices, until, middle + service_s)
            paid -= price_until(edges, prices, until, middle)
            found = min(found, charge(c, k, g, middle, middle) + paid)
            stack[depth, 0], stack[depth, 1] = middle, right
            stack[depth, 2] = charge(c, k, g, middle, right)
            stack[depth + 1, 0], stack[depth + 1, 1] = left, middle
            stack[depth + 1, 2] = max(cost, charge(c, k, g, left, middle))
            depth += 2
    return float(least)


@compiled(inline="always")
def _summed_costs(c: Charges, edges: Floats, prices: Floats, table: Floats, tolerance: float) -> float:
    """Return the sum of least charges and prices; with an infinite tolerance, over tabulated starts only."""
    until = totals(prices, edges)
    kinds, groups = c.runs.shape
    value = 0.0
    for g in range(groups):
        m, best = c.model[g], NEVER
        for k in range(kinds):
            if not c.runs[k, g]:
                continue
            if tolerance == NEVER:
                cost, _ = best_start(c, k, g, edges, prices[k, m], until[k, m], table[k, g])
            else:
                cost = least_cost(c, k, g, edges, prices[k, m], until[k, m], table[k, g], best, tolerance)
            best = min(best, cost)
        value += best
    return value


@compiled()
def tabulated_value(c: Charges, edges: Floats, prices: Floats, table: Floats) -> float:
    """Return the sum of least charges and prices over the tabulated starts: an estimate of `proven_value`."""
    c, edges, prices, table = without_refcounts((c, edges, prices, table))
    return _summed_costs(c, edges, prices, table, NEVER)


@compiled()
def proven_value(c: Charges, edges: Floats, prices: Floats, table: Floats, tolerance: float) -> float:
    """Return a lower bound on the sum of least charges and prices over all starts.

    Args:
        c: The charges.
        edges: Grid of times; (J + 1,).
        prices: Prices of each model, non-increasing; (K, M, J).
        table: Result of `charge_table`.
        tolerance: Largest loss per group.
    """
    c, edges, prices, table = without_refcounts((c, edges, prices, table))
    return _summed_costs(c, edges, prices, table, tolerance)
