"""Simulated annealing over orders and batches: algorithm 1 of SLO-aware annealing, section 4.3.

The functions take lists or arrays, so that the interpreter and the compiler run the same text and get the
same bits (`compiling.annealer`). They know no chance: its draws are arguments.

A solution is `order`, the jobs by position, and `first`, the position of the first job of each of `count`
batches, with n behind the last one. Tables have a row of n jobs for each size of a batch, in one sequence.
The sums up to each batch are kept, so that a move is priced from the first batch on that it changes.

Arguments of `anneal`: `order` and `first` (n + 2 entries) have the start, `count` batches, and lose it.
`e2e_s` and `latest_s` are tables of execution times and of the latest starts that meet the objective,
seconds from now. `tokens` has the KV tokens of each job at its end, `room` those that fit. `scale` is the
factor on relative changes of G. `temperatures` has T, `draws` the `DRAWS` of each move. `price` and
`new_price` are work spaces of 3 (n + 1) as in `score`; the first begins with the start of the first
batch, seconds from now, the time that all jobs together have waited, and 0. `best_order` and `best_first`
receive the best.
"""

from math import inf
from typing import Any, Final

SQUEEZE: Final = 0
DELAY: Final = 1
SWAP: Final = 2
OPEN: Final = 3
"""The three moves of the paper, and a delay that opens a new batch."""

DRAWS: Final = 4
"""Draws of a move: its kind, its position, another position, and the logarithm of the chance."""


def uncounted(array: Any) -> Any:
    """Return the array; compiled, without its reference count, which would take half of the time."""
    return array


def score(
    order: Any,
    first: Any,
    since: int,
    count: int,
    n: int,
    e2e_s: Any,
    latest_s: Any,
    before: Any,
    after: Any,
) -> None:
    """Price the batches from `since` on, whose price `before` has up to there; `after` gets the rest.

    A price has three entries per batch: when it starts, and what the batches before it add up to: t of
    equation 2, the sum of latencies, and its n, the jobs in time. Batches run in sequence; each lasts as long
    as its longest job (equations 4, 11 and 12).
    """
    at = 3 * since
    start_s, total_s, met = before[at], before[at + 1], before[at + 2]
    for batch in range(since, count):
        low, high = first[batch], first[batch + 1]
        row = (high - low - 1) * n
        longest_s = 0.0
        for position in range(low, high):
            cell = row + order[position]
            took_s = e2e_s[cell]
            total_s += start_s + took_s
            if start_s <= latest_s[cell]:
                met += 1.0
            if took_s > longest_s:
                longest_s = took_s
        start_s += longest_s
        at += 3
        after[at], after[at + 1], after[at + 2] = start_s, total_s, met


def batch_of(first: Any, position: int, batch_max: int) -> int:
    """Return the batch of a position; batches of `batch_max` would have it in the first that is looked at."""
    batch = position // batch_max
    while first[batch + 1] <= position:
        batch += 1
    return batch


def elsewhere(first: Any, batch: int, n: int, draw: float) -> int:
    """Return a position outside of a batch; n if there is none."""
    low, size = first[batch], first[batch + 1] - first[batch]
    position = int((n - size) * draw)
    return position + size if position >= low else position


def fits(order: Any, first: Any, batch: int, tokens: Any, room: float, gets: int, gives: int) -> bool:
    """Return whether a batch fits into the KV cache with the job at `gets` and without the one at `gives`.

    -1 for `gives` keeps all.
    """
    if room == inf:
        return True
    total = tokens[order[gets]]
    for position in range(first[batch], first[batch + 1]):
        if position != gives:
            total += tokens[order[position]]
    return bool(total <= room)


def swaps(
    order: Any, first: Any, batch: int, second: int, tokens: Any, room: float, position: int, other: int
) -> bool:
    """Return whether jobs of two batches may change places: each fits then, or has one job."""
    if first[batch + 1] - first[batch] > 1 and not fits(order, first, batch, tokens, room, other, position):
        return False
    alone = first[second + 1] - first[second] == 1
    return alone or fits(order, first, second, tokens, room, position, other)


def effective(
    order: Any,
    first: Any,
    count: int,
    batch_max: int,
    tokens: Any,
    room: float,
    kind: int,
    position: int,
    batch: int,
) -> int:
    """Return the move that is made where a move of this kind was drawn.

    Behind the last batch, and where the next batch is full, a delay opens a new batch (ours: without it the
    number of batches could only fall, and from full batches only swaps would be possible). What is impossible
    becomes a swap (ours: the paper does not say, and with batches of one nothing else is possible).
    """
    if kind == SQUEEZE:
        free = batch > 0 and first[batch] - first[batch - 1] < batch_max
        return SQUEEZE if free and fits(order, first, batch - 1, tokens, room, position, -1) else SWAP
    if kind == DELAY:
        free = batch + 1 < count and first[batch + 2] - first[batch + 1] < batch_max
        if free and fits(order, first, batch + 1, tokens, room, position, -1):
            return DELAY
        return OPEN if first[batch + 1] - first[batch] > 1 else SWAP
    return SWAP


def apply(order: Any, first: Any, count: int, kind: int, position: int, edge: int, batch: int) -> int:
    """Make a move; return the number of batches.

    The job changes places with the one at `edge`: the first of its batch for a squeeze, its last for a delay.
    There the boundary between the batches passes over it. A batch that is left empty is removed.
    """
    order[position], order[edge] = order[edge], order[position]
    if kind == SWAP:
        return count
    if kind == OPEN:
        for at in range(count + 1, batch + 1, -1):
            first[at] = first[at - 1]
        first[batch + 1] = edge
        return count + 1
    if kind == SQUEEZE:
        first[batch] = edge + 1
    else:
        first[batch + 1] = edge
    if first[batch] < first[batch + 1]:
        return count
    for at in range(batch, count):
        first[at] = first[at + 1]
    return count - 1


def revert(
    order: Any, first: Any, count: int, kind: int, position: int, edge: int, batch: int, alone: bool
) -> None:
    """Undo a move; `count` is the number of batches before it, `alone` says that its batch had one job."""
    if kind == OPEN:
        for at in range(batch + 1, count + 1):
            first[at] = first[at + 1]
    elif kind != SWAP:
        if alone:
            for at in range(count, batch, -1):
                first[at] = first[at - 1]
        if kind == SQUEEZE or alone:
            first[batch] = edge
        if kind == DELAY:
            first[batch + 1] = edge + 1
    order[position], order[edge] = order[edge], order[position]


def copy(source: Any, target: Any, low: int, high: int) -> None:
    """Copy the entries from `low` to before `high`."""
    for at in range(low, high):
        target[at] = source[at]


def anneal(
    order: Any,
    first: Any,
    count: int,
    n: int,
    batch_max: int,
    e2e_s: Any,
    latest_s: Any,
    tokens: Any,
    room: float,
    scale: float,
    temperatures: Any,
    draws: Any,
    price: Any,
    new_price: Any,
    best_order: Any,
    best_first: Any,
) -> int:
    """Search from a solution; leave the best one in `best_order` and `best_first`, return its batches.

    A better solution replaces the present one, and a worse one does with probability exp(change / T). Of
    equal G, the one with the lower latency counts as the best (ours).
    """
    order, first = uncounted(order), uncounted(first)
    best_order, best_first = uncounted(best_order), uncounted(best_first)
    e2e_s, latest_s, tokens = uncounted(e2e_s), uncounted(latest_s), uncounted(tokens)
    price, new_price = uncounted(price), uncounted(new_price)
    temperatures, draws = uncounted(temperatures), uncounted(draws)
    score(order, first, 0, count, n, e2e_s, latest_s, price, price)
    best_s, best_count = price[3 * count + 1], count
    best = value = price[3 * count + 2] / best_s
    copy(order, best_order, 0, n)
    copy(first, best_first, 0, count + 1)
    for move in range(len(temperatures)):
        at = DRAWS * move
        kind, position = int(3.0 * draws[at]), int(n * draws[at + 1])
        batch = batch_of(first, position, batch_max)
        kind = effective(order, first, count, batch_max, tokens, room, kind, position, batch)
        if kind == SWAP:
            edge = elsewhere(first, batch, n, draws[at + 2])
            if edge == n:
                continue
            second = batch_of(first, edge, batch_max)
            if not swaps(order, first, batch, second, tokens, room, position, edge):
                continue
            since = min(batch, second)
        elif kind == SQUEEZE:
            edge, since = first[batch], batch - 1
        else:
            edge, since = first[batch + 1] - 1, batch
        alone = first[batch + 1] - first[batch] == 1
        new_count = apply(order, first, count, kind, position, edge, batch)
        score(order, first, since, new_count, n, e2e_s, latest_s, price, new_price)
        total_s = new_price[3 * new_count + 1]
        new = new_price[3 * new_count + 2] / total_s
        # Without a job in time G is 0 and has no relative change: what is as good is taken.
        change = scale * (new - value) / value if value > 0.0 else 0.0
        if change < 0.0 and draws[at + 3] * temperatures[move] >= change:
            revert(order, first, count, kind, position, edge, batch, alone)
            continue
        value, count = new, new_count
        copy(new_price, price, 3 * since + 3, 3 * count + 3)
        if new > best or (new == best and total_s < best_s):
            best, best_s, best_count = new, total_s, count
            copy(order, best_order, 0, n)
            copy(first, best_first, 0, count + 1)
    return best_count
