"""What compiled code works on: the problem, and the queues that are being improved.

Compiled functions take plain arrays: each array inside a tuple costs them two atomic operations per call,
which made the search six times slower. So what is read together lies together, in few arrays.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qlm.domain.errors import InvalidValueError
from qlm.planner.arrays import NONE, Floats, Ints, ProblemArrays

FAST_MODELS_MAX: Final = 63
"""Models of a problem that the fast solver takes: which are warm is kept in the bits of one integer."""

HASTE: Final = 1e-5
"""Seconds of penalty per second of mean completion and request. It decides between plans of equal penalty:
work without a deadline is not put off for nothing."""

# Columns of `Data.work`.
DRAIN, DRAIN_VAR, TAIL, TAIL_VAR, REQUESTS, DEADLINE = range(6)
CANNOT_RUN: Final = -1.0
"""In the column `DRAIN`: the kind cannot run the group."""

# Columns of `Data.who`.
MODEL, PRIORITY, HOME, CHAIN, RANK = range(5)

# Columns of `Data.fleet`; the models in host memory are bits.
KIND, LOADED, WARM = range(3)

# Columns of `Data.swaps`.
SWAP_WARM, SWAP_COLD, UNLOAD = range(3)

# Places of `Data.prices`.
MISS_WEIGHT, MOVE = range(2)

# Columns of `Queues.state`.
CLOCK, CLOCK_VAR, COST = range(3)


class Data(NamedTuple):
    """The problem; G groups, I instances, K kinds, M models; seconds from now.

    Attributes:
        work: Of groups on kinds: drain and tail with variances, requests, deadline; (K, G, 6).
        who: Of groups: model, priority, present instance or -1, chain or -1, rank in it; (G, 5).
        fleet: Of instances: kind, loaded model or -1, warm models in bits; (I, 3).
        busy: Of instances: mean and variance; (I, 2).
        swaps: Of models on kinds: warm swap, cold swap, unload; (K, M, 3).
        prices: Of a miss and a move; (2,).
        peers: Placeable groups by model, one model after the other; (P,).
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
            penalty and haste; (I, C + 1, 3).
        warm: Models held before each place, in bits; (I, C + 1).
        spot: Instance and place of each group, -1 for none; (G, 2).
    """

    queue: Ints
    length: Ints
    state: Floats
    warm: Ints
    spot: Ints


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
    peers = [np.flatnonzero((arrays.model == m) & arrays.placeable) for m in used]
    able, able_count = _able(arrays, peers)
    return Data(
        work=_work(arrays),
        who=np.stack(
            [number[arrays.model], arrays.priority, arrays.home, *_chains(arrays, in_order)], axis=1
        ),
        fleet=np.stack([arrays.kind, number[arrays.loaded], warm], axis=1),
        busy=np.stack([arrays.busy_s, arrays.busy_var], axis=1),
        swaps=np.stack([arrays.swap_warm_s, arrays.swap_cold_s, arrays.unload_s], axis=2)[:, used],
        prices=np.array([arrays.miss_weight_s, arrays.move_s], dtype=np.float64),
        peers=np.concatenate([*peers, np.empty(0, dtype=np.int64)]),
        peers_from=np.concatenate([[0], np.cumsum([len(p) for p in peers])]).astype(np.int64),
        able=able,
        able_count=able_count,
        chained=in_order,
    )


def _work(arrays: ProblemArrays) -> Floats:
    shape = arrays.drain_s.shape
    drain_s = np.where(arrays.runs, arrays.drain_s, CANNOT_RUN)
    requests = np.broadcast_to(arrays.requests, shape)
    deadline_s = np.broadcast_to(arrays.deadline_s, shape)
    columns = [drain_s, arrays.drain_var, arrays.tail_s, arrays.tail_var, requests, deadline_s]
    return np.ascontiguousarray(np.stack(columns, axis=2))


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
        queue=np.full((instances, capacity), -1, dtype=np.int64),
        length=np.zeros(instances, dtype=np.int64),
        state=np.zeros((instances, capacity + 1, 3)),
        warm=np.zeros((instances, capacity + 1), dtype=np.int64),
        spot=np.full((len(data.who), 2), -1, dtype=np.int64),
    )
    queues.state[:, 0, :2] = data.busy
    queues.warm[:, 0] = data.fleet[:, WARM]
    return queues
