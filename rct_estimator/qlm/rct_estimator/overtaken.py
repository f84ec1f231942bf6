"""How much longer requests wait that others overtake, which are yet to arrive: a busy period, as arrays.

An arrival of class c at time t goes first if its deadline t + T_c is before that of the one that waits. While
such come, the queue before it drains by 1 - rho only, rho being the share of the instance that they take.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qlm.rct_estimator.cluster_arrays import IntArray, Overtakers
from qlm.rct_estimator.length_predictive import FloatArray
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.queue_rows import QueueRows, QueueWalk

SHARE_MAX: Final = 0.95
"""Overtaking classes take at most this share of an instance: else a wait would have no end to forecast."""

EVICTIONS: Final = Normal(0.1, 0.06**2)
"""How many requests of an overtaken class are evicted for each one that overtakes it, whose prompts are then
computed again, before an instance was watched: 0 to 0.19 in simulations of five profiles at load 1.2, none to
0.05 at 0.9."""


_FOR_EVER_S: Final = 1e12
"""Longer than anything that is waited for, seconds."""

_BLOCK: Final = 8192
"""Waits times classes that are worked on at once."""

_NO_SHARE: Final = 1e-12
"""A smaller share of an instance is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overtaking:
    """What overtakes each of some waits, shape (waits, classes); in each row by rising lead.

    Attributes:
        lead_s: How long arrivals of the class will still go before it; `inf` for ever, 0 or less for never.
        share: Of the instance that the class takes.
        rate_rps: Its requests per second there.
        noise_s: Variance of the work that comes of it in a time, over its mean.
        doubt_var: Variance of the share, relative to its square.
    """

    lead_s: FloatArray
    share: FloatArray
    rate_rps: FloatArray
    noise_s: FloatArray
    doubt_var: FloatArray

    def evicting(
        self, again_s: FloatArray, prompt_tokens: FloatArray, repeated: FloatArray, busy_s: FloatArray
    ) -> "Overtaking":
        """Add to what overtakes that evicted requests have their prompts computed again.

        How many are evicted for each one that overtakes is a Poisson count whose mean has a gamma prior with
        the moments of `EVICTIONS`.

        Args:
            again_s: What such a prompt takes of the instance, shape (waits,).
            prompt_tokens: Its length, likewise.
            repeated: Tokens of prompts that were computed again in a time, likewise.
            busy_s: That time, likewise.
        """
        rate_rps = self.rate_rps * (self.lead_s > 0)
        strength = EVICTIONS.mean / EVICTIONS.var
        seen = repeated / np.maximum(1.0, prompt_tokens)
        exposure = strength + rate_rps.sum(axis=1) * busy_s
        mean = (strength * EVICTIONS.mean + seen) / exposure
        share = self.share + (mean * again_s)[:, None] * rate_rps
        extra_sd = (np.sqrt(mean / exposure) * again_s)[:, None] * rate_rps
        doubt_var = self.doubt_var + (extra_sd / np.maximum(share, _NO_SHARE)) ** 2
        return replace(self, share=share, doubt_var=doubt_var)

    def lengthened(self, wait_s: FloatArray, wait_var: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the mean and variance of waits that have these, each of shape (waits,), without overtaking.

        Mean: the least fixed point of W' = W + sum of rho_c min(W', lead_c), a busy period where all leads
        are longer. Variance: with rho that of the classes that overtake to the end, everything that makes W'
        longer lets more of them come, by 1 / (1 - rho): what W varies by, the work that comes, and how far
        rho_c is off, which is common to all that come of a class.
        """
        lead_s = np.clip(self.lead_s, 0.0, _FOR_EVER_S)
        share = self.share * (lead_s > 0)
        mean_s, to_the_end = _fixed_point(wait_s, lead_s, share)
        added_s = share * np.minimum(mean_s[:, None], lead_s)
        own = added_s * (self.noise_s + self.doubt_var * added_s)
        var = (wait_var + own.sum(axis=1)) / (1 - to_the_end) ** 2
        longer = mean_s > wait_s
        return np.where(longer, mean_s, wait_s), np.where(longer, var, wait_var)


def _fixed_point(wait_s: FloatArray, lead_s: FloatArray, share: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Solve for W', and say what share overtakes to the end. Those with the shortest lead stop first."""
    if not share.size:
        return wait_s, np.zeros(len(wait_s))
    stopped_s = share * lead_s * (lead_s < _FOR_EVER_S)
    stopping_s = np.cumsum(stopped_s, axis=1)
    left = share - np.cumsum(share, axis=1) + share.sum(axis=1)[:, None]
    left = np.minimum(SHARE_MAX, left)
    means_s = (wait_s[:, None] + stopping_s - stopped_s) / (1 - left)
    until = means_s <= lead_s
    rows, first = np.arange(len(wait_s)), np.argmax(until, axis=1)
    ever = until[rows, first]
    mean_s = np.where(ever, means_s[rows, first], wait_s + stopping_s[:, -1])
    return mean_s, np.where(ever, left[rows, first], 0.0)


def overtaken(rows: QueueRows, walk: QueueWalk, others: Overtakers) -> QueueWalk:
    """Lengthen the waits along virtual queues by what is yet to come.

    Args:
        rows: Queued groups.
        walk: When they get their places behind what waits now.
        others: Who is yet to come.
    """
    order = np.argsort(-others.target_s, axis=1, kind="stable")
    target_s = np.take_along_axis(others.target_s, order, axis=1)
    first_s, last_s, before, after = (np.empty(len(rows.cls)) for _ in range(4))
    # Arrays that fit the cache are worked on several times as fast.
    for at in range(0, len(rows.cls), size := max(1, _BLOCK // max(1, order.shape[1]))):
        part = slice(at, at + size)
        overtaking = _of_rows(rows, part, others, order, target_s)
        first_s[part], before[part] = overtaking.lengthened(walk.first_s[part], walk.var_before[part])
        last = replace(overtaking, lead_s=overtaking.lead_s + rows.spread_s[part, None])
        last_s[part], after[part] = last.lengthened(walk.last_s[part], walk.var_after[part])
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
    """What overtakes the first requests of some rows; `order` has those that stop first in front."""
    cls, instance = rows.cls[part], rows.instance[part]
    at = order[cls] + (others.share.shape[1] * instance)[:, None]
    return Overtaking(
        lead_s=rows.deadline_s[part, None] - target_s[cls],
        share=others.share.take(at),
        rate_rps=others.rate_rps.take(at),
        noise_s=others.noise_s.take(at),
        doubt_var=others.doubt_var.take(at),
    ).evicting(
        rows.table.prompt_s[cls, rows.kind[part]] * rows.speed[part],
        others.prompt_tokens[cls],
        others.repeated[instance],
        others.busy_s[instance],
    )
