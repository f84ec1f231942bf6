"""Price of a reader: the quality of experience that a second of idling costs, by what is left to serve of it.

With r the rate, g tokens generated and n to come, l = g + n, and h = l / (2 r) half the time to read them:

    QoE* = h / (h + m);  m = (sum of lateness so far + idle n) / l
    price = -dQoE* / d idle / (n blocks) = h / (h + m)^2 / (l blocks)

with the mean number of KV blocks while the tokens to come are generated. A pause delays only those, hence a
factor n / l of the quality, in which n cancels out.

That is the rule of cost over remaining work, which minimises the total cost of delay where not all can be
served in time. By block alone, without the n, a new request is worth more than one that has nearly ended, so
in overload answers were interrupted shortly before their end (docs/batch-policy-unified.md has the figures).
With slack in place of the price, QoE fell from 0.96 to between 0.82 and 0.85: it protects long answers, whose
blocks would serve several short ones.
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
    blocks = (view.tokens + needs.left / 2) / view.machine.block_tokens
    price = half_s / (half_s + late_s) ** 2 / (length * blocks)
    return np.where(needs.reads, price * np.where(view.inside, INSIDE_FACTOR, 1.0), 0.0)
