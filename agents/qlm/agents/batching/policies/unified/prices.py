"""Price of a reader: what a second of idling costs its user, by what is left to serve of it.

With r the rate, g tokens generated and n expected to come, l = g + n, m the instance's mean answer, and
h = l / (2 r) half the time to read them:

    value = QoE* + w (l / m) 2^(-idle / half-life)          quality of experience and smooth goodput
    QoE*  = h / (h + late);  late = (sum of lateness so far + idle n) / l
    price = -d value / d idle / (n blocks)
          = (h / (h + late)^2 / l + w ln 2 / half-life (l / m) 2^(-idle / half-life) / n) / blocks

with the mean number of KV blocks while the tokens to come are generated. That is the rule of cost over
remaining work, which minimises the total cost of delay where not all can be served in time.

QoE* is of a request, and hardly falls in the first seconds. What a user reads is of a token, and a third of
the users have left after three. By the first alone, long answers are interrupted, and little of them is read.
By the second alone, some new requests wait for minutes. The figures are in docs/batch-policy-unified.md.
With slack in place of the price, QoE fell from 0.96 to between 0.82 and 0.85: it protects long answers, whose
blocks would serve several short ones.
"""

from math import log
from typing import Final

import numpy as np

from qlm.agents.batching.policies.unified.demands import Demands
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, Floats, View
from qlm.domain.streaming.goodput import HALF_LIFE_S
from qlm.domain.streaming.reader import READING_TOKENS_PER_S
from qlm.domain.streaming.timeline import LATE_S

GOODPUT_WEIGHT: Final = 0.05
"""w: weight of smooth goodput beside QoE*. From 0.02 to 0.2, more of it gives more smooth goodput and less
QoE*."""

ON_TIME_FACTOR: Final = 4.0
"""Price of who never idled: its objective would be missed. With 10, results are the same."""

INSIDE_FACTOR: Final = 4.0
"""Price of who runs, against churn: a swap pays only if it gains more than it loses. From 1.3 to 8, results
are the same; preemptions fall."""


def prices(view: View, needs: Demands) -> Floats:
    """Return the price of each request; 0 without a reader."""
    rate = np.where(needs.reads, view.rate, 1.0)
    # The reader of a first token reads on, at a pace that no objective has.
    rate = np.where(rate == FIRST_TOKEN_ONLY, READING_TOKENS_PER_S, rate)
    left = np.maximum(1.0, view.left_mean)
    length = view.generated + left
    half_s = length / (2 * rate)
    late_s = (view.late_sum_s + needs.idle_s * left) / length
    blocks = (view.tokens + left / 2) / view.machine.block_tokens
    quality = half_s / (half_s + late_s) ** 2 / length
    kept = 2.0 ** (-needs.idle_s / HALF_LIFE_S)
    goodput = log(2) / HALF_LIFE_S * length / max(1.0, view.pace.answer_mean) * kept / left
    price = (quality + GOODPUT_WEIGHT * goodput) / blocks
    factor = np.where(needs.idle_s <= LATE_S, ON_TIME_FACTOR, 1.0) * np.where(view.inside, INSIDE_FACTOR, 1.0)
    return np.where(needs.reads, price * factor, 0.0)
