"""Price of a reader: the quality of experience that one second of idling costs, per block of KV cache.

With r the rate, g tokens generated and n to come, l = g + n, and h = l / (2 r) half the time to read them:

    QoE* = h / (h + m);  m = (sum of lateness so far + idle n) / l
    price = -dQoE* / d idle / blocks = h / (h + m)^2  n / l / blocks

A pause delays only the tokens to come, hence n / l. With slack in place of the price, QoE fell from 0.96 to
between 0.82 and 0.85 in overload: it protects long answers, whose blocks would serve several short ones.
"""

from typing import Final

import numpy as np

from qlm.agents.batching.policies.unified.demands import Demands
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, Floats, View
from qlm.domain.streaming.reader import READING_TOKENS_PER_S

INSIDE_FACTOR: Final = 2.0
"""Price of who runs, against churn: a swap pays only if it gains more than it loses. From 1.3 to 8, results
are the same."""


def prices(view: View, needs: Demands) -> Floats:
    """Return the price of each request; 0 without a reader."""
    rate = np.where(needs.reads, view.rate, 1.0)
    # The reader of a first token reads on, at a pace that no objective has.
    rate = np.where(rate == FIRST_TOKEN_ONLY, READING_TOKENS_PER_S, rate)
    length = view.generated + needs.left
    half_s = length / (2 * rate)
    late_s = (view.late_sum_s + needs.idle_s * needs.left) / length
    price = half_s / (half_s + late_s) ** 2 * (needs.left / length) / view.needed_blocks
    return np.where(needs.reads, price * np.where(view.inside, INSIDE_FACTOR, 1.0), 0.0)
