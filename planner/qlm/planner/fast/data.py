"""What compiled code works on: the problem, and the queues that are being improved.

An array that is passed to a compiled function costs two atomic operations per call, a quarter of the search
when there were some ten per move: what is called in inner loops is inlined by Numba (`inline="always"`). What
is read together lies together.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qlm.domain.errors import InvalidValueError
from qlm.planner.arrays import NONE, Bools, Floats, Ints, ProblemArrays, row_major
from qlm.planner.fast.penalty import EXACT_REQUESTS_MAX

FAST_MODELS_MAX: Final = 63
"""Models of a problem that the fast solver takes: which are warm is kept in the bits of one integer."""

HASTE: Final = 1e-5
"""Seconds of penalty per second of mean completion and request. It decides between plans of equal penalty:
work without a deadline is not put off for nothing."""

# Columns of `Data.work`.
DRAIN, DRAIN_VAR, TAIL, TAIL_VAR, REQUESTS, DEADLINE, HALF, PER_DRAIN = range(8)
CANNOT_RUN: Final = -1.0
"""In the column `DRAIN`: the kind cannot run the group."""

# Columns of `Data.who`.
MODEL, PRIORITY, HOME, CHAIN, RANK, PEER = range(6)

# Columns of `Data.fleet`; the models in host memory are bits.
KIND, LOADED, WARM = range(3)

# Columns of `Data.swaps`.
SWAP_WARM, SWAP_COLD, UNLOAD = range(3)

# Places of `Data.prices`.
MISS_WEIGHT, MOVE = range(2)

# Columns of `Queues.state`.
CLOCK, CLOCK_VAR, COST, REST = range(4)

# Columns of `Drafts.span`.
INSTANCE, BEGIN, SAME, END = range(4)


class Data(NamedTuple):
    """The problem; G groups, I instances, K kinds, M models; seconds from now.

    Attributes:
        work: Of groups on kinds: drain and tail with variances, requests, deadline, half of a request's
            drain, and one over the drain (0 where the penalty is not integrated); (K, G, 8).
        who: Of groups: model, priority, present instance or -1, chain or -1, rank in it, place in `peers`
            (where it is there); (G, 6).
        fleet: Of instances: kind, loaded model or -1, warm models in bits; (I, 3).
        busy: Of instances: mean and variance; (I, 2).
        swaps: Of models on kinds: warm swap, cold swap, unload; (K, M, 3).
        prices: Of a miss and a move; (2,).
        peers: Placeable groups by model, one model after the other, each by deadline; (P,).
        peers_from: Where each model's groups begin in `peers`; (M + 1,).
        able: Instances that can run each model, padded with -1; (M, I).
        able_count: How many; (M,).
        chained: Whether any group is in a chain: looking for chains costs a quarter of a move.
    """

    work: Floats
    who: Ints
    fleet: Ints
    busy: Floats
    swaps: Floats
    prices: Floats
    peers: Ints
    peers_from: Ints
    able: Ints
    able_count: Ints
    chained: bool


class Queues(NamedTuple):
    """Virtual queues with what is known of each place; capacity C.

    Attributes:
        queue: Groups, first served first; (I, C).
        length: How many; (I,).
        state: Clock and its variance before each place, without a swap into it; cost of the group there,
            penalty and haste; cost from there to the end; (I, C + 1, 4).
        warm: Models held before each place, in bits; (I, C + 1).
        spot: Instance and place of each group, -1 for none; (G, 2).
    """

    queue: Ints
    length: Ints
    state: Floats
    warm: Ints
    spot: Ints


class Drafts(NamedTuple):
    """Room for changed queues that are judged before they are adopted, two at a time.

    Attributes:
        groups: What would stand from the place before `BEGIN` on; (2, C + 1).
        span: Instance; places before `BEGIN` are as now; those from `SAME` on are what ends the queue now,
            in the same order; new length `END`; (2, 4).
        state: Cost of each place, clock and variance behind it; columns as in `Queues`; (2, C + 1, 3).
        warm: Models held behind each place; (2, C + 1).
    """

    groups: Ints
    span: Ints
    state: Floats
    warm: Ints


def make_data(arrays: ProblemArrays, *, in_order: bool = False) -> Data:
    """Lay a problem out for compiled code.

    Args:
        arrays: The problem.
        in_order: Groups of a class are served in the order of their deadlines on each instance.

    Raises:
        InvalidValueError: It has more models than `FAST_MODELS_MAX`.
    """
    used = np.unique(np.concatenate([arrays.model, arrays.loaded[arrays.loaded >= 0]]))
    models = len(used)
    if models > FAST_MODELS_MAX:
        expected = f"at most {FAST_MODELS_MAX} that wait or are loaded, for the fast solver"
        raise InvalidValueError("models", models, expected)
    number = np.full(len(arrays.models) + 1, NONE, dtype=np.int64)  # the last is that of no model
    number[used] = np.arange(models)
    bits = np.int64(1) << np.arange(models, dtype=np.int64)
    warm = (arrays.warm[:, used] * bits).sum(axis=1, dtype=np.int64)
    peers = [_by_deadline(arrays, (arrays.model == m) & arrays.placeable) for m in used]
    able, able_count = _able(arrays, peers)
    who = [number[arrays.model], arrays.priority, arrays.home, *_chains(arrays, in_order)]
    data = Data(
        work=_work(arrays),
        who=np.stack([*who, np.full(len(arrays.groups), NONE)], axis=1),
        fleet=np.stack([arrays.kind, number[arrays.loaded], warm], axis=1),
        busy=np.stack([arrays.busy_s, arrays.busy_var], axis=1),
        swaps=np.stack([arrays.swap_warm_s, arrays.swap_cold_s, arrays.unload_s], axis=2)[:, used],
        prices=np.array([arrays.miss_weight_s, arrays.move_s], dtype=np.float64),
        peers=np.concatenate([*peers, np.empty(0, dtype=np.int64)]),
        peers_from=np.zeros(models + 1, dtype=np.int64),
        able=able,
        able_count=able_count,
        chained=in_order,
    )
    return only(row_major(data), arrays.placeable)


def only(data: Data, groups: Bools) -> Data:
    """Leave other groups out of the search; (G,)."""
    peers = data.peers[groups[data.peers]]
    counts = np.bincount(data.who[peers, MODEL], minlength=len(data.able_count))
    who = data.who.copy()
    who[peers, PEER] = np.arange(len(peers))
    begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return data._replace(who=who, peers=peers, peers_from=begins)


def _by_deadline(arrays: ProblemArrays, chosen: Bools) -> Ints:
    groups = np.flatnonzero(chosen)
    order: Ints = groups[np.lexsort((groups, arrays.deadline_s[groups]))]
    return order


def _work(arrays: ProblemArrays) -> Floats:
    shape = arrays.drain_s.shape
    drain_s = np.where(arrays.runs, arrays.drain_s, CANNOT_RUN)
    requests = np.broadcast_to(arrays.requests, shape)
    deadline_s = np.broadcast_to(arrays.deadline_s, shape)
    half_s = 0.5 * arrays.drain_s / requests
    integrated = (arrays.drain_s > 0.0) & (requests > EXACT_REQUESTS_MAX)
    per_drain = np.zeros(shape)
    np.divide(1.0, arrays.drain_s, out=per_drain, where=integrated)
    columns = [
        drain_s,
        arrays.drain_var,
        arrays.tail_s,
        arrays.tail_var,
        requests,
        deadline_s,
        half_s,
        per_drain,
    ]
    return np.stack(columns, axis=2)


def _chains(arrays: ProblemArrays, in_order: bool) -> tuple[Ints, Ints]:
    """Chain of each group, -1 for none, and its rank there.

    A class is known by what its groups have in common: model, priority, and times per request.
    """
    groups = len(arrays.groups)
    chain, rank = np.full(groups, -1, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    due = np.flatnonzero(np.isfinite(arrays.deadline_s) & (arrays.deadline_s > 0))
    if not in_order or not len(due):
        return chain, rank
    times = np.concatenate([arrays.drain_s / arrays.requests, arrays.tail_s])[:, due]
    # Six digits: sums of the same numbers may differ in the last ones.
    scale = 10.0 ** np.floor(np.log10(np.maximum(times, 1e-9)))
    keys = np.vstack([np.round(times / scale, 6) * scale, arrays.model[due], arrays.priority[due]])
    chain[due] = np.unique(keys.round(9), axis=1, return_inverse=True)[1].ravel()
    rank[due[np.lexsort((due, arrays.deadline_s[due]))]] = np.arange(len(due))
    return chain, rank


def _able(arrays: ProblemArrays, peers: list[NDArray[np.int64]]) -> tuple[Ints, Ints]:
    able = np.full((len(peers), max(1, len(arrays.instances))), -1, dtype=np.int64)
    count = np.zeros(len(peers), dtype=np.int64)
    for m, groups in enumerate(peers):
        kinds = np.flatnonzero(arrays.runs[:, groups].any(axis=1))
        found = np.flatnonzero(np.isin(arrays.kind, kinds))
        able[m, : len(found)] = found
        count[m] = len(found)
    return able, count


def empty_queues(data: Data, capacity: int) -> Queues:
    """Make empty queues with room for `capacity` groups each."""
    instances = len(data.fleet)
    queues = Queues(
        queue=np.zeros((instances, capacity), dtype=np.int64),
        length=np.zeros(instances, dtype=np.int64),
        state=np.zeros((instances, capacity + 1, 4)),
        warm=np.zeros((instances, capacity + 1), dtype=np.int64),
        spot=np.full((len(data.who), 2), -1, dtype=np.int64),
    )
    queues.state[:, 0, :2] = data.busy
    queues.warm[:, 0] = data.fleet[:, WARM]
    return queues


def empty_drafts(capacity: int) -> Drafts:
    """Make room for queues of up to `capacity` groups."""
    return Drafts(
        groups=np.zeros((2, capacity + 1), dtype=np.int64),
        span=np.zeros((2, 4), dtype=np.int64),
        state=np.zeros((2, capacity + 1, 3)),
        warm=np.zeros((2, capacity + 1), dtype=np.int64),
    )
