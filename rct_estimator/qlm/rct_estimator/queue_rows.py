"""What happens along virtual queues, as sums over rows: when places become free, and what is met."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.cluster_arrays import BoolArray, Groups, Instances, IntArray
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.met import met_between
from qlm.rct_estimator.service_table import ServiceTable
from qlm.rct_estimator.throughput import settled_s

_NEVER_S: Final = 1e15
"""A deadline further away than anything that is computed with, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueRows:
    """Queued groups in a row, queue after queue; shape (rows,) each."""

    table: ServiceTable
    instances: Instances
    instance: IntArray
    cls: IntArray
    kind: IntArray
    model: IntArray
    requests: FloatArray
    deadline_s: FloatArray
    spread_s: FloatArray
    speed: FloatArray
    first: BoolArray
    swap: BoolArray
    run: IntArray
    run_first: IntArray
    run_last: BoolArray
    before_model: IntArray
    prompts_s: FloatArray
    decodes_s: FloatArray

    @classmethod
    def of(
        cls, table: ServiceTable, instances: Instances, groups: Groups, flat: IntArray, instance: IntArray
    ) -> "QueueRows":
        """Look up what belongs to the groups `flat`, which are in the queues of `instance`."""
        klass, kind = groups.cls[flat], instances.kind[instance]
        model, speed = table.model[klass], instances.speed[instance]
        request_s = table.request_s[klass, kind]
        if not np.all(np.isfinite(request_s)):
            row = int(np.flatnonzero(~np.isfinite(request_s))[0])
            raise InvalidValueError(
                f"orders[{instance[row]}]", int(flat[row]), "a group that runs on this kind of instance"
            )
        first = np.append(True, instance[1:] != instance[:-1])
        before = np.where(first, instances.loaded[instance], np.append(-1, model[:-1]))
        starts = first | (model != before)
        requests, prompt_s = groups.requests[flat], table.prompt_s[klass, kind]
        return cls(
            table=table,
            instances=instances,
            instance=instance,
            cls=klass,
            kind=kind,
            model=model,
            requests=requests,
            deadline_s=np.minimum(groups.deadline_s[flat], _NEVER_S),
            spread_s=groups.spread_s[flat],
            speed=speed,
            first=first,
            swap=model != before,
            run=np.cumsum(starts) - 1,
            run_first=np.flatnonzero(starts),
            run_last=np.append(starts[1:], True),
            before_model=before,
            prompts_s=requests * prompt_s * speed,
            decodes_s=requests * (request_s - prompt_s) * speed,
        )

    def along_queue(self, values: FloatArray) -> FloatArray:
        """Sum of a queue's rows up to each, itself included."""
        return _along(values, np.flatnonzero(self.first), np.cumsum(self.first) - 1)

    def along_run(self, values: FloatArray) -> FloatArray:
        """Likewise from the last model change on."""
        return _along(values, self.run_first, self.run)

    def in_run(self) -> FloatArray:
        """Requests of each row's whole run."""
        return np.add.reduceat(self.requests, self.run_first)[self.run]

    def free(self) -> FloatArray:
        """Places that are free when each row's run begins."""
        places = np.where(self.swap, np.inf, self.instances.free[self.instance])
        return np.asarray(places[self.run_first][self.run], dtype=np.float64)

    def tail(self) -> tuple[FloatArray, FloatArray]:
        """From the last request's place until the longest of the group ends: mean and variance.

        Behind the last group of a run the batch empties, and gets faster; unless its model stays and
        requests that are yet to arrive follow.
        """
        mean, var = self.table.tail(self.cls, self.kind, self.requests)
        alone, alone_var = self.table.emptying(self.cls, self.kind, self.in_run())
        last = np.append(self.instance[1:] != self.instance[:-1], True)
        empties = np.where(last, 1 - self.instances.load[self.instance], 1.0) * (
            self.run_last & (alone < mean)
        )
        mean, var = mean + empties * (alone - mean), var + empties * (alone_var - var)
        return mean * self.speed, var * self.speed**2

    def emptying(self) -> tuple[FloatArray, FloatArray]:
        """How long the batch runs on at the end of each run: mean and variance, 0 on other rows."""
        mean, var = self.table.emptying(self.cls, self.kind, self.in_run())
        ends = self.run_last
        return np.where(ends, mean * self.speed, 0.0), np.where(ends, var * self.speed**2, 0.0)

    def swap_s(self) -> FloatArray:
        """Time of the model change before each row, 0 for none."""
        table, models = self.table, self.table.warm_s.shape[0]
        key = self.instance * models + self.model
        _, firsts = np.unique(key, return_index=True)
        used = np.ones(len(key), dtype=np.bool_)
        used[firsts] = False
        at_hand = self.instances.warm[self.instance, self.model] | (
            self.instances.loaded[self.instance] == self.model
        )
        load_s = np.where(
            used | at_hand, table.warm_s[self.model, self.kind], table.cold_s[self.model, self.kind]
        )
        unload_s = np.where(self.before_model >= 0, table.unload_s[self.before_model, self.kind], 0.0)
        return np.where(self.swap, load_s + unload_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueWalk:
    """When the rows' requests get their places; shape (rows,) each.

    Attributes:
        first_s: The first request; mean.
        kink_s: The last one that nobody kept waiting, or `first_s`.
        kink_share: Share of the requests up to there.
        last_s: The last request.
        var_before: Variance at `first_s`.
        var_after: Variance at `last_s`.
    """

    first_s: FloatArray
    kink_s: FloatArray
    kink_share: FloatArray
    last_s: FloatArray
    var_before: FloatArray
    var_after: FloatArray


def walk_queues(rows: QueueRows) -> QueueWalk:
    """Sum up each queue."""
    table, at = rows.table, (rows.cls, rows.kind)
    places = np.minimum(rows.free(), table.batch[at])
    fill_s, savings = _empty_start(rows, places / table.batch[at])
    places = places[rows.run_first][rows.run]
    prompts_s, decodes_s = rows.along_run(rows.prompts_s), rows.along_run(rows.decodes_s)
    taken = rows.along_run(rows.requests)
    behind_s = settled_s(np.maximum(0.0, decodes_s - fill_s), *savings)
    behind_s = np.where(taken > places, behind_s, 0.0)
    before_s = settled_s(np.maximum(0.0, decodes_s - rows.decodes_s - fill_s), *savings)
    before_s = np.where(taken - rows.requests > places, before_s, 0.0)
    waited_s = behind_s - before_s
    emptying_s, emptying_var = rows.emptying()
    run_s = np.where(rows.run_last, prompts_s + behind_s, 0.0) + emptying_s
    start_s = (
        rows.instances.busy_s[rows.instance]
        + rows.along_queue(run_s)
        - run_s
        + rows.along_queue(rows.swap_s())
    )
    first_s = start_s + prompts_s - rows.prompts_s + before_s
    empty = (places - (taken - rows.requests)) / np.maximum(rows.requests, 1e-9)
    spare = (fill_s - (decodes_s - rows.decodes_s)) / np.maximum(rows.decodes_s, 1e-9)
    share = np.where(behind_s > 0, np.clip(np.maximum(empty, spare), 0.0, 1.0), 1.0)
    var_after, var_before = _variances(rows, waited_s, emptying_var)
    return QueueWalk(
        first_s=first_s,
        kink_s=first_s + share * rows.prompts_s,
        kink_share=share,
        last_s=start_s + prompts_s + behind_s,
        var_before=var_before,
        var_after=var_after,
    )


def _empty_start(
    rows: QueueRows, begun: FloatArray
) -> tuple[FloatArray, list[tuple[FloatArray, FloatArray]]]:
    """What each run saves for the share of the batch that begins empty: `fill_s`, and see `settled_s`."""
    table, at, first = rows.table, (rows.cls, rows.kind), rows.run_first

    def of_first(values: FloatArray) -> FloatArray:
        return np.asarray(values[first][rows.run], dtype=np.float64)

    savings = (table.piling_share, table.piling_s), (table.young_share, table.settling_s)
    return of_first(table.fill_s[at] * rows.speed * begun), [
        (of_first(share[at] * begun), of_first(scale_s[at] * rows.speed)) for share, scale_s in savings
    ]


def _variances(
    rows: QueueRows, waited_s: FloatArray, emptying_var: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Variance of the moment when each row's last request, and its first, gets its place."""
    table, at = rows.table, (rows.cls, rows.kind)
    decode_s = (table.request_s[at] - table.prompt_s[at]) * rows.speed
    common_s = waited_s * table.mean_doubt[at]
    # What a class has in common adds up as a square: (N + y)^2 = N^2 + (2 N y + y^2).
    common_before_s = _before_in_class(rows, common_s)
    own = waited_s * decode_s * table.cv2[at] + common_s * (2 * common_before_s + common_s)
    own += rows.prompts_s * rows.speed * table.prompt_s[at] * table.prompt_cv2[at]
    worked_s = rows.along_queue(rows.prompts_s + waited_s)
    doubt = rows.instances.doubt[rows.instance]
    base = rows.instances.busy_var[rows.instance] + rows.along_queue(emptying_var) - emptying_var
    summed = rows.along_queue(own)
    after = base + summed + (doubt * worked_s) ** 2
    before = base + summed - own + (doubt * (worked_s - rows.prompts_s - waited_s)) ** 2
    return np.maximum(after, 0.0), np.maximum(before, 0.0)


def _before_in_class(rows: QueueRows, values: FloatArray) -> FloatArray:
    """Sum over earlier rows of the same queue and class."""
    order = np.argsort(rows.instance * len(rows.table.model) + rows.cls, kind="stable")
    key = (rows.instance * len(rows.table.model) + rows.cls)[order]
    first = np.append(True, key[1:] != key[:-1])
    summed = np.empty(len(values))
    summed[order] = _along(values[order], np.flatnonzero(first), np.cumsum(first) - 1)
    return np.maximum(summed - values, 0.0)


def _along(values: FloatArray, firsts: IntArray, segment: npt.NDArray[np.integer]) -> FloatArray:
    """Running sum within segments; `firsts` are their first rows."""
    summed = np.cumsum(values)
    before = summed[firsts] - values[firsts]
    return np.asarray(summed - before[segment], dtype=np.float64)


def met_shares(rows: QueueRows, walk: QueueWalk) -> FloatArray:
    """Expected share of each row's requests that meet their deadline."""
    table, at = rows.table, (rows.cls, rows.kind)
    batch = table.batch[at]
    occupied = np.maximum(0.0, batch - np.minimum(rows.free(), batch))
    load = np.clip((rows.in_run() + occupied - 1) / np.maximum(batch - 1, 1e-9), 0.0, 1.0)
    lightness = table.alone[at] + load * (1 - table.alone[at])
    response_s = table.response_s[at] * (rows.speed * lightness)[:, None]
    sigma = np.sqrt((walk.var_before + walk.var_after) / 2) + 1e-9
    kink_deadline_s = rows.deadline_s + walk.kink_share * rows.spread_s
    end_deadline_s = rows.deadline_s + rows.spread_s
    waited = met_between(kink_deadline_s - walk.kink_s, end_deadline_s - walk.last_s, sigma, response_s)
    some = np.flatnonzero(walk.kink_share > 0)
    if some.size:
        filled = met_between(
            (rows.deadline_s - walk.first_s)[some],
            (kink_deadline_s - walk.kink_s)[some],
            sigma[some],
            response_s[some],
        )
        waited[some] += walk.kink_share[some] * (filled - waited[some])
    return np.clip(waited, 0.0, 1.0)
