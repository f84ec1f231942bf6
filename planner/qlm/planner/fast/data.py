"""Arrays of the fast solver's compiled code: the problem, the incumbent queues, and candidate queues.

An array that is passed to a compiled function costs two atomic operations per call. With some ten arrays
per move that was a quarter of the search, so Numba inlines the functions of inner loops
(`inline="always"`). Values that are read together lie together.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qlm.planner.arrays import NONE, Bools, Floats, Ints, ProblemArrays, row_major
from qlm.planner.fast.penalty import SHORT_S, integrated
from qlm.planner.swapping.compiled import (
    Memory,
    Rows,
    all_fits,
    first_rows,
    memory_of,
    row_size,
    tiers_at_first,
    tiers_if_fits,
)

COMPLETION_WEIGHT: Final = 1e-5
"""Weight of the total completion time of all requests, beside the penalty. It decides between plans of equal
penalty, so that work without a deadline is not delayed for nothing."""

# Columns of `Data.work`.
SERVICE, SERVICE_VAR, TAIL, TAIL_VAR, REQUESTS, DEADLINE, HALF, SERVICE_RATE = range(8)
OTHER_VAR_FROM, OTHER_VAR_TO, LEAST_VAR = range(8, 11)
CLASS_SD, SPEED_SD, TAIL_SPEED_SD, ALLOWED = range(11, 15)
CANNOT_RUN: Final = -1.0
"""Value in the column `SERVICE` where the kind cannot run the group."""

# Columns of `Data.traits`.
MODEL, PRIORITY, HOME, CHAIN, RANK, PEER, CLASS = range(7)

# Columns of `Data.fleet`.
KIND, LOADED = range(2)

# Columns of `Data.busy`.
BUSY, BUSY_VAR, LEAVE = range(3)

# Elements of `Data.prices`.
MISS_WEIGHT, MOVE, PROMISE = range(3)

# Columns of `Queues.state`.
CLOCK, CLOCK_VAR, SPEED_SUM, CLASS_SUM, COST, REST = range(6)

# Columns of `Candidates.span`.
INSTANCE, BEGIN, SAME, END = range(4)


class Data(NamedTuple):
    """A problem; G groups, I instances, K kinds, M models; times in seconds from now.

    Attributes:
        work: Work by kind and group: mean and variance of service time and tail, requests, deadline, half of
            a request's service time, and 1 / service time; for which other variances, from and below, and
            above which variance at the deadline its penalty is integrated (`penalty.integrated`); standard
            deviations of the service time by the errors of class and speed, and of the tail by that of the
            speed, all of them parts of the variances; misses that its promise allows; (K, G, 15).
        traits: Traits by group: model, priority, home instance or -1, chain or -1, rank in the chain, index
            in `peers`, and class whose error it shares or -1; (G, 7). A chain is a class whose groups must
            keep their order on each instance.
        fleet: State by instance: kind, and loaded model or -1; (I, 2).
        busy: Mean and variance of the time until each instance's present batch has ended, and what a swap at
            the head of its queue discards; (I, 3).
        asleep: What sleeps on each instance at first; (I, H), rows as in `swapping.compiled`.
        memory: Host memory, and times of swaps.
        fits: All models fit into the host memory of the kind together: then none is ever evicted; (K,).
        first_tier: Tier in which each model sleeps on each instance at first; (I, M).
        later_tier: Tier in which it sleeps once it has been awake, where all fit; (K, M).
        unload: Time to unload each model; (K, M).
        prices: Price of a miss, of a move, and of a request short of a promise; (3,).
        peers: Groups of the search by model, and by deadline within a model; (P,).
        peers_from: First index of each model in `peers`; (M + 1,).
        eligible: Instances that can run each model, padded with -1; (M, I).
        eligible_count: Number of these; (M,).
        has_chains: True if any group is in a chain: looking for chains costs a quarter of a move.
        has_shared: True if groups share errors.
    """

    work: Floats
    traits: Ints
    fleet: Ints
    busy: Floats
    asleep: Rows
    memory: Memory
    fits: Bools
    first_tier: Ints
    later_tier: Ints
    unload: Floats
    prices: Floats
    peers: Ints
    peers_from: Ints
    eligible: Ints
    eligible_count: Ints
    has_chains: bool
    has_shared: bool


class Queues(NamedTuple):
    """Virtual queues, with the state of the instance at each place; capacity C.

    Attributes:
        queue: Groups in order of service; (I, C).
        length: Groups in each queue; (I,).
        state: Mean and variance of the clock before each place, without a swap into it, and its standard
            deviation by the error of the speed; standard deviation by the error of the class of the group
            there, behind it; cost of that group, penalty and completion; cost from there to the end;
            (I, C + 1, 6).
        memory_at: Row of `memory` that holds before each place; where all models fit, the bits of those that
            were put to sleep before it, negated; (I, C + 1).
        memory: What sleeps: at 0 at first, at p + 1 after a swap at place p; (I, C + 1, H).
        position: Instance and place of each group, or -1; (G, 2).
    """

    queue: Ints
    length: Ints
    state: Floats
    memory_at: Ints
    memory: Rows
    position: Ints


class Candidates(NamedTuple):
    """Workspace for two changed queues that are evaluated before they are accepted.

    Attributes:
        groups: Groups from the place before `BEGIN` on; (2, C + 1).
        span: Instance; `BEGIN`, first changed place; `SAME`, from which on the groups are the present end of
            the queue, in the same order; `END`, new length; (2, 4).
        state: The clock behind each place, and the group's cost; columns as in `Queues`; (2, C + 1, 5).
        memory_at: Row of `memory` that holds behind each place, up to `BEGIN` one of `Queues`; where all
            models fit, bits as in `Queues`; (2, C + 1).
        memory: What sleeps, at p + 1 after a swap at place p; (2, C + 2, H).
    """

    groups: Ints
    span: Ints
    state: Floats
    memory_at: Ints
    memory: Rows


def make_data(arrays: ProblemArrays, *, in_order: bool = False) -> Data:
    """Write a problem as arrays for compiled code.

    Args:
        arrays: The problem.
        in_order: Serve the groups of a class in the order of their deadlines on each instance.
    """
    asleep = [model for entries in arrays.asleep for model, _tier in entries]
    used = np.unique(np.concatenate([arrays.model, arrays.loaded[arrays.loaded >= 0], asleep])).astype(
        np.int64
    )
    models, memory = len(used), memory_of(arrays, used)
    number = np.full(len(arrays.models) + 1, NONE, dtype=np.int64)  # the last is that of no model
    number[used] = np.arange(models)
    peers = [_by_deadline(arrays, (arrays.model == m) & arrays.placeable) for m in used]
    eligible, eligible_count = _eligible(arrays, peers)
    traits = [number[arrays.model], arrays.priority, arrays.home, *_chains(arrays, in_order)]
    traits += [np.full(len(arrays.groups), NONE), arrays.cls]
    data = Data(
        work=_work(arrays),
        traits=np.stack(traits, axis=1),
        fleet=np.stack([arrays.kind, number[arrays.loaded]], axis=1),
        busy=np.stack([arrays.busy_s, arrays.busy_var, arrays.leave_s], axis=1),
        asleep=first_rows(arrays, number, row_size(arrays, memory)),
        memory=memory,
        fits=all_fits(memory),
        first_tier=tiers_at_first(arrays, number, models),
        later_tier=tiers_if_fits(memory),
        unload=arrays.unload_s[:, used],
        prices=np.array([arrays.miss_weight_s, arrays.move_s, arrays.promise_s], dtype=np.float64),
        peers=np.concatenate([*peers, np.empty(0, dtype=np.int64)]),
        peers_from=np.zeros(models + 1, dtype=np.int64),
        eligible=eligible,
        eligible_count=eligible_count,
        has_chains=in_order,
        has_shared=arrays.shares,
    )
    return only(row_major(data), arrays.placeable)


def only(data: Data, groups: Bools) -> Data:
    """Restrict the search to some groups; (G,)."""
    peers = data.peers[groups[data.peers]]
    counts = np.bincount(data.traits[peers, MODEL], minlength=len(data.eligible_count))
    traits = data.traits.copy()
    traits[peers, PEER] = np.arange(len(peers))
    begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return data._replace(traits=traits, peers=peers, peers_from=begins)


def has_promises(data: Data) -> bool:
    """Return True if any group has a promise that has a price."""
    promised = data.work[:, :, ALLOWED] < data.work[:, :, REQUESTS]
    return bool(data.prices[PROMISE] > 0.0 and promised.any())


def ignoring_promises(data: Data) -> Data:
    """Return the problem without the price of promises."""
    prices = data.prices.copy()
    prices[PROMISE] = 0.0
    return data._replace(prices=prices)


def _by_deadline(arrays: ProblemArrays, chosen: Bools) -> Ints:
    groups = np.flatnonzero(chosen)
    order: Ints = groups[np.lexsort((groups, arrays.deadline_s[groups]))]
    return order


def _work(arrays: ProblemArrays) -> Floats:
    shape = arrays.service_s.shape
    service_s = np.where(arrays.runs, arrays.service_s, CANNOT_RUN)
    requests = np.broadcast_to(arrays.requests, shape)
    deadline_s = np.broadcast_to(arrays.deadline_s, shape)
    half_s = 0.5 * arrays.service_s / requests
    service_var = arrays.service_var + arrays.class_sd_s**2 + arrays.speed_sd_s**2
    service_rate = np.zeros(shape)
    np.divide(1.0, arrays.service_s, out=service_rate, where=arrays.service_s > SHORT_S)
    columns = [
        service_s,
        service_var,
        arrays.tail_s,
        arrays.tail_var + arrays.tail_speed_sd_s**2,
        requests,
        deadline_s,
        half_s,
        service_rate,
        *integrated(requests, arrays.service_s, service_var),
        arrays.class_sd_s,
        arrays.speed_sd_s,
        arrays.tail_speed_sd_s,
        np.broadcast_to(arrays.allowed, shape),
    ]
    return np.stack(columns, axis=2)


def _chains(arrays: ProblemArrays, in_order: bool) -> tuple[Ints, Ints]:
    """Return the chain of each group, -1 for none, and its rank there.

    Groups of one class have the same model, priority, and times per request.
    """
    groups = len(arrays.groups)
    chain, rank = np.full(groups, -1, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    dated = np.flatnonzero(np.isfinite(arrays.deadline_s) & (arrays.deadline_s > 0))
    if not in_order or not len(dated):
        return chain, rank
    times = np.concatenate([arrays.service_s / arrays.requests, arrays.tail_s])[:, dated]
    # Six digits: sums of the same numbers may differ in the last ones.
    scale = 10.0 ** np.floor(np.log10(np.maximum(times, 1e-9)))
    keys = np.vstack([np.round(times / scale, 6) * scale, arrays.model[dated], arrays.priority[dated]])
    chain[dated] = np.unique(keys.round(9), axis=1, return_inverse=True)[1].ravel()
    rank[dated[np.lexsort((dated, arrays.deadline_s[dated]))]] = np.arange(len(dated))
    return chain, rank


def _eligible(arrays: ProblemArrays, peers: list[NDArray[np.int64]]) -> tuple[Ints, Ints]:
    eligible = np.full((len(peers), max(1, len(arrays.instances))), -1, dtype=np.int64)
    count = np.zeros(len(peers), dtype=np.int64)
    for m, groups in enumerate(peers):
        kinds = np.flatnonzero(arrays.runs[:, groups].any(axis=1))
        found = np.flatnonzero(np.isin(arrays.kind, kinds))
        eligible[m, : len(found)] = found
        count[m] = len(found)
    return eligible, count


def empty_queues(data: Data, capacity: int) -> Queues:
    """Make empty queues of the given capacity; places behind the first are not cleared."""
    instances = len(data.fleet)
    queues = Queues(
        queue=np.empty((instances, capacity), dtype=np.int64),
        length=np.zeros(instances, dtype=np.int64),
        state=np.empty((instances, capacity + 1, REST + 1)),
        memory_at=np.empty((instances, capacity + 1), dtype=np.int64),
        memory=np.empty((instances, capacity + 1, data.asleep.shape[1]), dtype=np.int16),
        position=np.full((len(data.traits), 2), -1, dtype=np.int64),
    )
    queues.state[:, 0], queues.memory_at[:, 0] = 0.0, 0
    queues.state[:, 0, :2] = data.busy[:, :LEAVE]
    queues.memory[:, 0] = data.asleep
    return queues


def empty_candidates(data: Data, capacity: int) -> Candidates:
    """Make a workspace for queues of the given capacity."""
    return Candidates(
        groups=np.zeros((2, capacity + 1), dtype=np.int64),
        span=np.zeros((2, 4), dtype=np.int64),
        state=np.zeros((2, capacity + 1, COST + 1)),
        memory_at=np.zeros((2, capacity + 1), dtype=np.int64),
        memory=np.zeros((2, capacity + 2, data.asleep.shape[1]), dtype=np.int16),
    )
