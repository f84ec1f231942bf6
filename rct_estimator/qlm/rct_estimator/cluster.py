"""Start, completion and P(met) of every group of a cluster at once, queue by queue (QLM, equations 1 to 5).

The same model as `waiting_time` and `completion_time`, on arrays: a flat row per queued group, sums along
each queue as differences of running sums. Queues do not depend on each other, so that only those that
changed are computed again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from qlm.rct_estimator.cluster_arrays import Groups, Instances, IntArray, Overtakers
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.overtaken import overtaken
from qlm.rct_estimator.queue_rows import QueueRows, met_shares, walk_queues
from qlm.rct_estimator.service_table import ServiceTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterEstimate:
    """What is expected of each group, shape (groups,) each; seconds from now.

    Attributes:
        instance: Whose queue it is in; -1 for none, and then the rest is inf or 0.
        first_s: Mean time when its first request gets its place.
        last_s: Likewise, its last one.
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
    """Estimate the whole cluster.

    Args:
        table: How long classes take on kinds of instances.
        instances: The fleet.
        groups: The groups.
        orders: Per instance its virtual queue: indices of groups, first served first.
        others: Who is yet to come and will overtake; None for nobody.

    Raises:
        InvalidValueError: A group is on an instance that cannot serve its class.
    """
    size = len(groups.cls)
    nothing = ClusterEstimate(
        instance=np.full(size, -1),
        first_s=np.full(size, np.inf),
        last_s=np.full(size, np.inf),
        completion_s=np.full(size, np.inf),
        completion_var=np.zeros(size),
        met=np.where(np.isinf(groups.deadline_s), 1.0, 0.0),
    )
    return _with_queues(nothing, table, instances, groups, orders, range(len(orders)), others)


def reestimate(
    before: ClusterEstimate,
    table: ServiceTable,
    instances: Instances,
    groups: Groups,
    orders: Sequence[IntArray],
    changed: Sequence[int],
    others: Overtakers | None = None,
) -> ClusterEstimate:
    """Estimate again where something changed; the result is that of `estimate`.

    Args:
        before: The estimate so far, of the same groups (with other counts and deadlines perhaps).
        table: As in `estimate`, with what is true now.
        instances: Likewise.
        groups: Likewise.
        orders: Likewise.
        changed: Instances whose queue, groups or state differ from then. A group that was moved changes
            the queue it left and the queue it is in.
        others: As in `estimate`.
    """
    left = np.isin(before.instance, np.asarray(changed, dtype=np.int64))
    cleared = replace(
        before,
        instance=np.where(left, -1, before.instance),
        first_s=np.where(left, np.inf, before.first_s),
        last_s=np.where(left, np.inf, before.last_s),
        completion_s=np.where(left, np.inf, before.completion_s),
        completion_var=np.where(left, 0.0, before.completion_var),
        met=np.where(left, np.where(np.isinf(groups.deadline_s), 1.0, 0.0), before.met),
    )
    return _with_queues(cleared, table, instances, groups, orders, changed, others)


def _with_queues(
    base: ClusterEstimate,
    table: ServiceTable,
    instances: Instances,
    groups: Groups,
    orders: Sequence[IntArray],
    chosen: Sequence[int],
    others: Overtakers | None,
) -> ClusterEstimate:
    """Fill in the groups of the chosen queues."""
    sizes = [len(orders[i]) for i in chosen]
    if not sum(sizes):
        return base
    flat = np.concatenate([orders[i] for i in chosen if len(orders[i])])
    rows = QueueRows.of(table, instances, groups, flat, np.repeat(np.asarray(chosen, dtype=np.int64), sizes))
    walk = walk_queues(rows)
    if others is not None:
        walk = overtaken(rows, walk, others)
    filled = {f.name: getattr(base, f.name).copy() for f in fields(ClusterEstimate)}
    tail_s, tail_var = rows.tail()
    filled["instance"][flat] = rows.instance
    filled["first_s"][flat] = walk.first_s
    filled["last_s"][flat] = walk.last_s
    filled["completion_s"][flat] = walk.last_s + tail_s
    filled["completion_var"][flat] = walk.var_after + tail_var
    filled["met"][flat] = met_shares(rows, walk)
    return ClusterEstimate(**filled)
