"""Longer waits due to overtaking: more urgent requests that arrive later, as a busy period on arrays.

An arrival of class c at time t goes first if its deadline t + T_c is before that of the waiting request.
While such requests arrive, the queue before it drains at the rate 1 - rho only. rho is the share of the
instance that they take.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qlm.rct_estimator.cluster.arrays import IntArray, Overtakers
from qlm.rct_estimator.cluster.queue_rows import QueueRows, QueueWalk
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal

SHARE_MAX: Final = 0.95
"""Bound of the share that overtaking classes take of an instance: keeps forecast waits finite."""

PREEMPTIONS: Final = Normal(0.1, 0.06**2)
"""Prior of the requests preempted per overtaking request, whose prompts are then computed again. Simulations
of five profiles: 0 to 0.19 at load 1.2, 0 to 0.05 at 0.9."""


_FOR_EVER_S: Final = 1e12
"""Longer than any wait, seconds."""

_BLOCK: Final = 8192
"""Array elements (waits times classes) per block: arrays that fit the cache are several times as fast."""

_NO_SHARE: Final = 1e-12
"""Avoids division by zero."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overtaking:
    """Arrivals that overtake each of some waits, shape (waits, classes); ascending window in each row.

    Attributes:
        window_s: Time for which arrivals of the class overtake; `inf` for always, 0 or less for never.
        share: Share of the instance that the class takes: rho_c.
        rate_rps: Requests of the class per second at the instance.
        work_dispersion_s: Variance over mean of the work that arrives in a time.
        share_cv2: Variance of the share estimate over its square.
    """

    window_s: FloatArray
    share: FloatArray
    rate_rps: FloatArray
    work_dispersion_s: FloatArray
    share_cv2: FloatArray

    def with_preemptions(
        self, again_s: FloatArray, prompt_tokens: FloatArray, repeated: FloatArray, busy_s: FloatArray
    ) -> "Overtaking":
        """Add the cost of preemptions: prompts of preempted requests are computed again.

        The number of preemptions per overtaking request is a Poisson count. Its mean has a gamma prior with
        the moments of `PREEMPTIONS`. All arguments have the shape (waits,).

        Args:
            again_s: Time of the instance for such a prompt.
            prompt_tokens: Mean length of such a prompt.
            repeated: Tokens of prompts that were computed again within `busy_s`.
            busy_s: Observed busy time.
        """
        rate_rps = self.rate_rps * (self.window_s > 0)
        strength = PREEMPTIONS.mean / PREEMPTIONS.var
        seen = repeated / np.maximum(1.0, prompt_tokens)
        exposure = strength + rate_rps.sum(axis=1) * busy_s
        mean = (strength * PREEMPTIONS.mean + seen) / exposure
        share = self.share + (mean * again_s)[:, None] * rate_rps
        extra_sd = (np.sqrt(mean / exposure) * again_s)[:, None] * rate_rps
        share_cv2 = self.share_cv2 + (extra_sd / np.maximum(share, _NO_SHARE)) ** 2
        return replace(self, share=share, share_cv2=share_cv2)

    def lengthen(self, wait_s: FloatArray, wait_var: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the mean and variance of the waits with overtaking, given those without; shape (waits,).

        Mean: the least fixed point of W' = W + sum of rho_c min(W', window_c), a busy period where all
        windows are longer. Variance: let rho be the share of the classes that overtake to the end. Whatever
        makes W' longer lets more of them arrive, by the factor 1 / (1 - rho): the variation of W, that of the
        arriving work, and the error of rho_c, which is common to all arrivals of a class.
        """
        window_s = np.clip(self.window_s, 0.0, _FOR_EVER_S)
        share = self.share * (window_s > 0)
        mean_s, to_the_end = _fixed_point(wait_s, window_s, share)
        added_s = share * np.minimum(mean_s[:, None], window_s)
        own = added_s * (self.work_dispersion_s + self.share_cv2 * added_s)
        var = (wait_var + own.sum(axis=1)) / (1 - to_the_end) ** 2
        longer = mean_s > wait_s
        return np.where(longer, mean_s, wait_s), np.where(longer, var, wait_var)


def _fixed_point(
    wait_s: FloatArray, window_s: FloatArray, share: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return W' and the share that overtakes to the end. Classes with the shortest window stop first."""
    if not share.size:
        return wait_s, np.zeros(len(wait_s))
    stopped_s = share * window_s * (window_s < _FOR_EVER_S)
    stopping_s = np.cumsum(stopped_s, axis=1)
    left = share - np.cumsum(share, axis=1) + share.sum(axis=1)[:, None]
    left = np.minimum(SHARE_MAX, left)
    means_s = (wait_s[:, None] + stopping_s - stopped_s) / (1 - left)
    until = means_s <= window_s
    rows, first = np.arange(len(wait_s)), np.argmax(until, axis=1)
    ever = until[rows, first]
    mean_s = np.where(ever, means_s[rows, first], wait_s + stopping_s[:, -1])
    return mean_s, np.where(ever, left[rows, first], 0.0)


def lengthen_queues(rows: QueueRows, walk: QueueWalk, others: Overtakers) -> QueueWalk:
    """Return the slot times along virtual queues with overtaking by `others`; `walk` has those without."""
    order = np.argsort(-others.target_s, axis=1, kind="stable")
    target_s = np.take_along_axis(others.target_s, order, axis=1)
    first_s, last_s, before, after = (np.empty(len(rows.cls)) for _ in range(4))
    for at in range(0, len(rows.cls), size := max(1, _BLOCK // max(1, order.shape[1]))):
        part = slice(at, at + size)
        overtaking = _of_rows(rows, part, others, order, target_s)
        first_s[part], before[part] = overtaking.lengthen(walk.first_s[part], walk.var_before[part])
        last = replace(overtaking, window_s=overtaking.window_s + rows.deadline_span_s[part, None])
        last_s[part], after[part] = last.lengthen(walk.last_s[part], walk.var_after[part])
    kink = (walk.kink_s - walk.first_s) / np.maximum(walk.last_s - walk.first_s, 1e-9)
    return QueueWalk(
        first_s=first_s,
        kink_s=first_s + kink * (last_s - first_s),
        kink_share=walk.kink_share,
        last_s=last_s,
        var_before=before,
        var_after=after,
    )


def _of_rows(
    rows: QueueRows, part: slice, others: Overtakers, order: IntArray, target_s: FloatArray
) -> Overtaking:
    """Return the overtaking of the first requests of some rows; `order` sorts classes by ascending window."""
    cls, instance = rows.cls[part], rows.instance[part]
    at = order[cls] + (others.share.shape[1] * instance)[:, None]
    return Overtaking(
        window_s=rows.deadline_s[part, None] - target_s[cls],
        share=others.share.take(at),
        rate_rps=others.rate_rps.take(at),
        work_dispersion_s=others.work_dispersion_s.take(at),
        share_cv2=others.share_cv2.take(at),
    ).with_preemptions(
        rows.table.prompt_s[cls, rows.kind[part]] * rows.speed[part],
        others.prompt_tokens[cls],
        others.repeated[instance],
        others.busy_s[instance],
    )
