"""Where speed ends the batch: more requests in it may be slower than all of them are read.

Memory and slots end a batch, and the price of readers decides who is left out. Where neither ends it before
its iterations are slower than the readers, all would fall behind together, up to the time at which they
yield. So the batch has the size k of the largest rate of smooth goodput (smooth goodput, equations 7 and 8):

    g(k) = k / step(k) 2^(-idle(k) / half-life);  idle(k) = max(0, n (step(k) - 1 / pace) - slack)

with the means of the readers among the first k: n tokens to come, their pace and slack. step(k) includes the
prompts of those that follow.

Who runs goes first then: what was delivered in time is lost if the rest is late.
"""

import numpy as np

from qlm.agents.batching.policies.unified.capacity import prompt_token_s
from qlm.agents.batching.policies.unified.demands import Demands
from qlm.agents.batching.policies.unified.order import Stage
from qlm.agents.batching.view import Flags, Floats, Ints, View
from qlm.domain.streaming.goodput import HALF_LIFE_S


def readers_falling_behind(view: View, needs: Demands, stage: Ints, rows: Ints) -> Flags:
    """Return which rows of a batch are readers that it may be too slow for; none if it is fast enough."""
    reads: Flags = (stage[rows] == Stage.READER) & (needs.pace[rows] > 0)
    if not reads.any():
        return reads
    step_s, readers = float(_steps_s(view, rows)[-1]), rows[reads]
    slow = needs.left[readers] * (step_s - 1 / needs.pace[readers]) > np.maximum(0.0, needs.slack_s[readers])
    return reads if slow.any() else np.zeros_like(reads)


def who_runs_first(view: View, stage: Ints, order: Ints) -> Ints:
    """Return an order in which the readers that run come before those outside."""
    moved = stage[order] == Stage.READER
    readers = order[moved]
    changed = order.copy()
    changed[moved] = readers[np.argsort(~view.inside[readers], kind="stable")]
    return changed


def size_of_most_goodput(view: View, needs: Demands, rows: Ints, reads: Flags) -> int:
    """Return how many of the first rows to run.

    Args:
        view: The instance.
        needs: What the requests need.
        rows: A batch, most wanted first.
        reads: Which of the rows are readers that count.
    """
    steps_s = _steps_s(view, rows)
    count = np.maximum(1, np.cumsum(reads))
    left, slack_s, read_s = (
        np.cumsum(np.where(reads, column, 0.0)) / count
        for column in (
            needs.left[rows],
            np.maximum(0.0, needs.slack_s[rows]),
            1 / np.where(reads, needs.pace[rows], 1.0),
        )
    )
    idle_s = np.where(np.cumsum(reads) > 0, np.maximum(0.0, left * (steps_s - read_s) - slack_s), 0.0)
    goodput = np.arange(1, len(rows) + 1) / steps_s * 2.0 ** (-idle_s / HALF_LIFE_S)
    return 1 + int(goodput.argmax())


def _steps_s(view: View, rows: Ints) -> Floats:
    """Return the duration of an iteration for the first k rows, the prompts of those that follow included."""
    iteration, pace = view.machine.iteration, view.pace
    sizes = np.arange(1, len(rows) + 1)
    prompt_ms = pace.prompt_mean * prompt_token_s(view) * 1000 + iteration.admission_ms
    per_request_ms = iteration.sequence_ms + prompt_ms / max(1.0, pace.answer_mean)
    context_ms = iteration.kv_ms * np.cumsum(view.tokens[rows])
    return np.asarray(
        (iteration.host_ms + iteration.linears(sizes) + context_ms + per_request_ms * sizes) / 1000
    )
