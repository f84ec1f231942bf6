"""The Lagrangian dual of the relaxation, in compiled code: capacity has a price, groups choose their starts.

Shapes: K lane types, M models, G groups, J steps between J + 1 moments `edges`. Prices are per second of
drain, at least 0 and never rising with time; behind the last moment they are 0. A model pays the price of
the instance and its share of swaps. Seconds throughout.
"""

from typing import Final

import numpy as np
from numba import njit

from qlm.planner.arrays import Floats
from qlm.planner.borrowed import borrowed
from qlm.planner.bound.charge import Charges, charge

NEVER: Final = np.inf

_HALVINGS: Final = 12
"""How often the interval of a start is halved at most when a bound is made exact."""

_STACK: Final = _HALVINGS + 3


@njit(cache=True, nogil=True)
def charge_table(c: Charges, edges: Floats) -> Floats:
    """Charges of starts within the steps, and behind the last moment; infinite before the earliest start.

    Shape (K, G, J + 1).
    """
    c, edges = borrowed((c, edges))
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


@njit(cache=True, nogil=True)
def model_prices(base: Floats, shares: Floats) -> Floats:
    """Prices of each model, swaps included; (K, M, J).

    Args:
        base: Prices of an instance, never rising; (K, J).
        shares: Swap seconds per second of drain done by the end of each step; (K, M, J).
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


@njit(cache=True, nogil=True)
def reserve(base: Floats, shares: Floats, capacity: Floats, held: Floats) -> float:
    """What all capacity is worth: its price, and that of work which needs no swap; arguments as elsewhere."""
    kinds, models, steps = shares.shape
    worth = 0.0
    for k in range(kinds):
        for j in range(steps):
            worth += base[k, j] * capacity[k, j]
        for m in range(models):
            done = 0.0
            for j in range(steps):
                done += held[k, m, j]
                after = base[k, j + 1] if j + 1 < steps else 0.0
                worth += (base[k, j] - after) * shares[k, m, j] * done
    return worth


@njit(cache=True, nogil=True)
def totals(prices: Floats, edges: Floats) -> Floats:
    """Price of staying from now until each moment; (K, M, J + 1)."""
    kinds, models, steps = prices.shape
    until = np.zeros((kinds, models, steps + 1))
    for k in range(kinds):
        for m in range(models):
            for j in range(steps):
                until[k, m, j + 1] = until[k, m, j] + prices[k, m, j] * (edges[j + 1] - edges[j])
    return until


@njit(cache=True, nogil=True)
def step_of(edges: Floats, at_s: float) -> int:
    """Step that a moment lies in; the number of steps if behind the last."""
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


@njit(cache=True, nogil=True, inline="always")
def price_until(edges: Floats, prices: Floats, until: Floats, at_s: float) -> float:
    """Price of an instance from now until some moment; one type's row of each."""
    j = step_of(edges, at_s)
    if j == len(edges) - 1:
        return float(until[j])
    return float(until[j] + prices[j] * (at_s - edges[j]))


@njit(cache=True, nogil=True, inline="always")
def best_start(
    c: Charges, k: int, g: int, edges: Floats, prices: Floats, until: Floats, row: Floats
) -> tuple[float, float]:
    """Cheapest of the tabulated starts of a group on a type: charge and price; its moment."""
    steps = len(edges) - 1
    first, drain_s = c.first_s[k, g], c.drain_s[k, g]
    best, best_s = NEVER, first
    p = 0
    for j in range(step_of(edges, first), steps + 1):
        start = max(edges[j], first)
        end = start + drain_s
        while p < steps and edges[p + 1] <= end:
            p += 1
        paid_end = until[p] + (prices[p] * (end - edges[p]) if p < steps else 0.0)
        paid_start = until[j] + (prices[j] * (start - edges[j]) if j < steps else 0.0)
        value = row[j] + (paid_end - paid_start)
        if value < best:
            best, best_s = value, start
    return best, best_s


@njit(cache=True, nogil=True)
def tabulated_value(c: Charges, edges: Floats, prices: Floats, table: Floats) -> float:
    """Least charges and prices of all groups over the tabulated starts: an estimate of `proven_value`."""
    c, edges, prices, table = borrowed((c, edges, prices, table))
    until = totals(prices, edges)
    kinds, groups = c.runs.shape
    value = 0.0
    for g in range(groups):
        m, best = c.model[g], NEVER
        for k in range(kinds):
            if c.runs[k, g]:
                cost, _ = best_start(c, k, g, edges, prices[k, m], until[k, m], table[k, g])
                best = min(best, cost)
        value += best
    return value


@njit(cache=True, nogil=True, inline="always")
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
    """A lower bound, to `tolerance`, on charge and price of a group on a type over all starts.

    Within an interval of starts, `charge` is a lower bound and, since prices never rise, the price is least
    at the end. Intervals that could hold less than the best start found are halved.
    A result above `limit` is only known to be above it.
    """
    steps = len(edges) - 1
    first, drain_s = c.first_s[k, g], c.drain_s[k, g]
    found, at_s = best_start(c, k, g, edges, prices, until, row)
    found += charge(c, k, g, at_s, at_s) - row[step_of(edges, at_s)]
    found = min(found, limit)
    least = row[steps] + price_until(edges, prices, until, max(edges[steps], first) + drain_s)
    least -= price_until(edges, prices, until, max(edges[steps], first))
    least = min(least, found)
    stack = np.empty((_STACK, 3))
    for j in range(step_of(edges, first), steps):
        stack[0, 0], stack[0, 1], stack[0, 2] = max(edges[j], first), edges[j + 1], row[j]
        depth = 1
        while depth > 0:
            depth -= 1
            left, right, cost = stack[depth]
            paid = price_until(edges, prices, until, right + drain_s) - price_until(
                edges, prices, until, right
            )
            value = cost + paid
            if value >= found - tolerance or right - left < 1e-6 * (1.0 + right) or depth > _HALVINGS:
                least = min(least, value)
                continue
            middle = 0.5 * (left + right)
            paid = price_until(edges, prices, until, middle + drain_s)
            paid -= price_until(edges, prices, until, middle)
            found = min(found, charge(c, k, g, middle, middle) + paid)
            stack[depth, 0], stack[depth, 1] = middle, right
            stack[depth, 2] = charge(c, k, g, middle, right)
            stack[depth + 1, 0], stack[depth + 1, 1] = left, middle
            stack[depth + 1, 2] = max(cost, charge(c, k, g, left, middle))
            depth += 2
    return float(least)


@njit(cache=True, nogil=True)
def proven_value(c: Charges, edges: Floats, prices: Floats, table: Floats, tolerance: float) -> float:
    """Least charges and prices of all groups over all starts, never too high.

    Args:
        c: The charges.
        edges: Moments; (J + 1,).
        prices: Of each model, never rising; (K, M, J).
        table: Of `charge_table`.
        tolerance: Per group, how much too low it may be.
    """
    c, edges, prices, table = borrowed((c, edges, prices, table))
    until = totals(prices, edges)
    kinds, groups = c.runs.shape
    value = 0.0
    for g in range(groups):
        m, best = c.model[g], NEVER
        for k in range(kinds):
            if c.runs[k, g]:
                cost = least_cost(c, k, g, edges, prices[k, m], until[k, m], table[k, g], best, tolerance)
                best = min(best, cost)
        value += best
    return value
