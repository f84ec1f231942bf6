"""Waiting times along virtual queues and the share of deadlines met, on arrays (QLM, equations 2 and 3)."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.cluster.arrays import BoolArray, Groups, Instances, IntArray
from qlm.rct_estimator.cluster.service_table import ServiceTable
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.throughput import decodes_from_empty_s

_NEVER_S: Final = 1e15
"""Stands for no deadline, seconds: later than any computed time."""

_STEEP: Final = 0.2
"""Change of z below which Phi at the middle stands for the mean along the line (error below 1e-3)."""

_SERIES: Final = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
"""Coefficients of Abramowitz and Stegun, 7.1.26."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QueueRows:
    """Queued groups, one row each, queue after queue; shape (rows,) each.

    A run is a maximal sequence of rows of one queue that need no model swap in between.
    """

    table: ServiceTable
    instances: Instances
    instance: IntArray
    cls: IntArray
    kind: IntArray
    model: IntArray
    requests: FloatArray
    deadline_s: FloatArray
    deadline_span_s: FloatArray
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
        """Build the rows of the groups `flat`, which are queued at `instance`; shape (rows,) both."""
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
            deadline_span_s=groups.deadline_span_s[flat],
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
        """Return running sums along each queue, each row included."""
        return _along(values, np.flatnonzero(self.first), np.cumsum(self.first) - 1)

    def along_run(self, values: FloatArray) -> FloatArray:
        """Return running sums along each run, each row included."""
        return _along(values, self.run_first, self.run)

    def in_run(self) -> FloatArray:
        """Return the number of requests of each row's whole run."""
        return np.add.reduceat(self.requests, self.run_first)[self.run]

    def free(self) -> FloatArray:
        """Return the batch slots that are free when each row's run begins."""
        slots = np.where(self.swap, np.inf, self.instances.free[self.instance])
        return np.asarray(slots[self.run_first][self.run], dtype=np.float64)

    def tail(self) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the tail: from the last request's slot until the longest request ends.

        Behind the last group of a run the batch empties and its iterations get faster, unless the model
        stays loaded and new arrivals follow.
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
        """Return mean and variance of the time to empty the batch at the end of each run; 0 on other rows."""
        mean, var = self.table.emptying(self.cls, self.kind, self.in_run())
        ends = self.run_last
        return np.where(ends, mean * self.speed, 0.0), np.where(ends, var * self.speed**2, 0.0)

    def swap_s(self) -> FloatArray:
        """Return the duration of the model swap before each row; 0 for none."""
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
    """Times at which the rows' requests get their batch slots; shape (rows,) each.

    Attributes:
        first_s: Mean for the first request.
        kink_s: Mean for the last request that starts without waiting for a slot, or `first_s`.
        kink_share: Share of the requests up to that one.
        last_s: Mean for the last request.
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
    """Return the slot times of all rows."""
    table, at = rows.table, (rows.cls, rows.kind)
    slots = np.minimum(rows.free(), table.batch[at])
    fill_s, transients = _empty_start(rows, slots / table.batch[at])
    slots = slots[rows.run_first][rows.run]
    prompts_s, decodes_s = rows.along_run(rows.prompts_s), rows.along_run(rows.decodes_s)
    taken = rows.along_run(rows.requests)
    behind_s = decodes_from_empty_s(np.maximum(0.0, decodes_s - fill_s), *transients)
    behind_s = np.where(taken > slots, behind_s, 0.0)
    before_s = decodes_from_empty_s(np.maximum(0.0, decodes_s - rows.decodes_s - fill_s), *transients)
    before_s = np.where(taken - rows.requests > slots, before_s, 0.0)
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
    empty = (slots - (taken - rows.requests)) / np.maximum(rows.requests, 1e-9)
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
    """Return `fill_s` of each run, and the transients to pass to `decodes_from_empty_s`.

    Both are scaled by the share of the batch that is empty at the start of the run.
    """
    table, at, first = rows.table, (rows.cls, rows.kind), rows.run_first

    def of_first(values: FloatArray) -> FloatArray:
        return np.asarray(values[first][rows.run], dtype=np.float64)

    transients = (
        (table.residual_transient_share, table.residual_transient_s),
        (table.age_transient_share, table.age_transient_s),
    )
    return of_first(table.fill_s[at] * rows.speed * begun), [
        (of_first(share[at] * begun), of_first(scale_s[at] * rows.speed)) for share, scale_s in transients
    ]


def _variances(
    rows: QueueRows, waited_s: FloatArray, emptying_var: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the variances of the slot times of each row's last request and of its first."""
    table, at = rows.table, (rows.cls, rows.kind)
    decode_s = (table.request_s[at] - table.prompt_s[at]) * rows.speed
    common_s = waited_s * table.work_uncertainty[at]
    # The uncertainty of a class is common to its requests: (N + y)^2 = N^2 + (2 N y + y^2).
    common_before_s = _before_in_class(rows, common_s)
    own = waited_s * decode_s * table.cv2[at] + common_s * (2 * common_before_s + common_s)
    own += rows.prompts_s * rows.speed * table.prompt_s[at] * table.prompt_cv2[at]
    worked_s = rows.along_queue(rows.prompts_s + waited_s)
    uncertainty = rows.instances.uncertainty[rows.instance]
    base = rows.instances.busy_var[rows.instance] + rows.along_queue(emptying_var) - emptying_var
    summed = rows.along_queue(own)
    after = base + summed + (uncertainty * worked_s) ** 2
    before = base + summed - own + (uncertainty * (worked_s - rows.prompts_s - waited_s)) ** 2
    return np.maximum(after, 0.0), np.maximum(before, 0.0)


def _before_in_class(rows: QueueRows, values: FloatArray) -> FloatArray:
    """Return the sum over earlier rows of the same queue and class."""
    order = np.argsort(rows.instance * len(rows.table.model) + rows.cls, kind="stable")
    key = (rows.instance * len(rows.table.model) + rows.cls)[order]
    first = np.append(True, key[1:] != key[:-1])
    summed = np.empty(len(values))
    summed[order] = _along(values[order], np.flatnonzero(first), np.cumsum(first) - 1)
    return np.maximum(summed - values, 0.0)


def _along(values: FloatArray, firsts: IntArray, segment: npt.NDArray[np.integer]) -> FloatArray:
    """Return running sums within segments; `firsts` are their first rows."""
    summed = np.cumsum(values)
    before = summed[firsts] - values[firsts]
    return np.asarray(summed - before[segment], dtype=np.float64)


def met_shares(rows: QueueRows, walk: QueueWalk) -> FloatArray:
    """Return the expected share of each row's requests that meet their deadline."""
    table, at = rows.table, (rows.cls, rows.kind)
    batch = table.batch[at]
    occupied = np.maximum(0.0, batch - np.minimum(rows.free(), batch))
    load = np.clip((rows.in_run() + occupied - 1) / np.maximum(batch - 1, 1e-9), 0.0, 1.0)
    lightness = table.alone_step_ratio[at] + load * (1 - table.alone_step_ratio[at])
    response_s = table.response_s[at] * (rows.speed * lightness)[:, None]
    sigma = np.sqrt((walk.var_before + walk.var_after) / 2) + 1e-9
    kink_deadline_s = rows.deadline_s + walk.kink_share * rows.deadline_span_s
    end_deadline_s = rows.deadline_s + rows.deadline_span_s
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


def normal_cdf(z: FloatArray) -> FloatArray:
    """Return P(Z <= z) of a standard normal Z, elementwise.

    Abramowitz and Stegun, 7.1.26; absolute error below 1e-7.
    """
    x = np.abs(z) * np.sqrt(0.5)
    t = 1 / (1 + 0.3275911 * x)
    series = np.zeros_like(x)
    for coefficient in reversed(_SERIES):
        series = (series + coefficient) * t
    upper = 0.5 * series * np.exp(-np.minimum(x * x, 700.0))
    return np.asarray(np.where(z >= 0, 1 - upper, upper), dtype=np.float64)


def met_between(
    slack_first_s: FloatArray, slack_last_s: FloatArray, sigma_s: FloatArray, service_s: FloatArray
) -> FloatArray:
    """Return the mean of P(W + X <= deadline) over requests whose slack changes linearly.

    Exact along the line: with z running from a to b, the mean of Phi is (G(b) - G(a)) / (b - a) where
    G(z) = z Phi(z) + phi(z) is its integral.

    Args:
        slack_first_s: Deadline less mean wait of the first request, shape (rows,).
        slack_last_s: Deadline less mean wait of the last request, shape (rows,).
        sigma_s: Standard deviation of the wait, positive, shape (rows,).
        service_s: Equally likely values of X, shape (rows, points).
    """
    sigma = sigma_s[:, None]
    first = np.clip((slack_first_s[:, None] - service_s) / sigma, -1e12, 1e12)
    last = np.clip((slack_last_s[:, None] - service_s) / sigma, -1e12, 1e12)
    change = last - first
    flat = np.abs(change) < _STEEP
    middle = normal_cdf((first + last) / 2)
    line = (_integral(last) - _integral(first)) / np.where(flat, 1.0, change)
    return np.asarray(np.where(flat, middle, line).mean(axis=1), dtype=np.float64)


def _integral(z: FloatArray) -> FloatArray:
    density = np.exp(-np.minimum(z * z / 2, 700.0)) / np.sqrt(2 * np.pi)
    return np.asarray(z * normal_cdf(z) + density, dtype=np.float64)
