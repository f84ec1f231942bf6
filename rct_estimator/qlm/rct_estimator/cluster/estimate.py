"""Start, completion and P(met) of every group of a cluster at once (QLM, equations 1 to 5).

The same model as `waiting_time` and `completion_time`, on arrays: one row per queued group. Sums along a
queue are differences of running sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qlm.rct_estimator.cluster.arrays import Groups, Instances, IntArray, Overtakers
from qlm.rct_estimator.cluster.overtaking import lengthen_queues
from qlm.rct_estimator.cluster.queue_rows import QueueRows, met_shares, walk_queues
from qlm.rct_estimator.cluster.service_table import ServiceTable
from qlm.rct_estimator.length_predictive import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterEstimate:
    """Estimates of each group, shape (groups,) each; seconds from now.

    Attributes:
        instance: Index of the instance whose queue holds the group; -1 for none (times are inf, variances 0).
        first_s: Mean time when its first request gets a batch slot.
        last_s: Mean time when its last request gets a batch slot.
        completion_s: Mean time when its last request has ended (equation 5).
        completion_var: Variance of that, seconds squared.
        met: Share of its requests expected to meet their deadline; 1 without a deadline.
    """

    instance: IntArray
    first_s: FloatArray
    last_s: FloatArray
    completion_s: FloatArray
    completion_var: FloatArray
    met: FloatArray


def estimate(
    table: ServiceTable,
    instances: Instances,
    groups: Groups,
    orders: Sequence[IntArray],
    others: Overtakers | None = None,
) -> ClusterEstimate:
    """Return the estimates of all groups.

    Args:
        table: Service times of classes on kinds of instances.
        orders: Virtual queue of each instance: indices of groups, first served first.
        others: Expected arrivals that will overtake; None for none.

    Raises:
        InvalidValueError: A group is on an instance that cannot serve its class.
    """
    size = len(groups.cls)
    result = ClusterEstimate(
        instance=np.full(size, -1),
        first_s=np.full(size, np.inf),
        last_s=np.full(size, np.inf),
        completion_s=np.full(size, np.inf),
        completion_var=np.zeros(size),
        met=np.where(np.isinf(groups.deadline_s), 1.0, 0.0),
    )
    sizes = [len(order) for order in orders]
    if not sum(sizes):
        return result
    flat = np.concatenate([order for order in orders if len(order)])
    rows = QueueRows.of(table, instances, groups, flat, np.repeat(np.arange(len(orders)), sizes))
    walk = walk_queues(rows)
    if others is not None:
        walk = lengthen_queues(rows, walk, others)
    tail_s, tail_var = rows.tail()
    result.instance[flat] = rows.instance
    result.first_s[flat] = walk.first_s
    result.last_s[flat] = walk.last_s
    result.completion_s[flat] = walk.last_s + tail_s
    result.completion_var[flat] = walk.var_after + tail_var
    result.met[flat] = met_shares(rows, walk)
    return result
