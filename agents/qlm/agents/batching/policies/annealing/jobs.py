"""The requests that a search orders, as columns."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qlm.agents.batching.policies.annealing.latency import Latency, latency
from qlm.agents.batching.view import FIRST_TOKEN_ONLY, NO_READER, View
from qlm.rct_estimator.kv_fit import tokens_that_fit
from qlm.rct_estimator.profiles.iteration import Equations

Floats = npt.NDArray[np.float64]


class Jobs(NamedTuple):
    """n requests to order; rows of tables are sizes of a batch, from 1 on.

    Attributes:
        e2e_s: Execution time; (`batch_max`, n).
        latest_s: Latest start that meets the objective, seconds from now; (`batch_max`, n). -inf: never met.
        tokens: KV tokens at the end; (n,).
        room: KV tokens that a batch may take.
        begin_s: Start of the first batch, seconds from now.
        waited_s: Time that all together have waited until now.
    """

    e2e_s: Floats
    latest_s: Floats
    tokens: Floats
    room: float
    begin_s: float = 0.0
    waited_s: float = 0.0

    @property
    def size(self) -> int:
        """Number of requests."""
        return len(self.tokens)

    @property
    def batch_max(self) -> int:
        """Most requests of a batch."""
        return len(self.e2e_s)


def jobs_of(
    view: View, rows: npt.NDArray[np.int64], equations: Equations, *, batch_max: int, begin_s: float = 0.0
) -> Jobs:
    """Return requests of a view, with their objectives as latest starts.

    Args:
        view: The instance.
        rows: The requests.
        equations: Coefficients of equations 14 and 15.
        batch_max: Most requests of a batch.
        begin_s: Start of the first batch, seconds from now.
    """
    machine, text = view.machine, view.tokens[rows].astype(np.float64)
    # The paper draws the output length from the normal distribution of the class; its mean needs no chance
    # (ours).
    output = np.maximum(1.0, view.left_mean[rows])
    # One row at least, so that no request is a table too.
    times = latency(equations, max(1, min(batch_max, len(rows))), text, output)
    return Jobs(
        e2e_s=times.e2e_s,
        latest_s=_latest_s(view, rows, times),
        tokens=text + output,
        room=tokens_that_fit(
            machine.kv_blocks * machine.block_tokens * machine.token_bytes, machine.token_bytes
        ),
        begin_s=begin_s,
        waited_s=float((view.now_s - view.arrival_s[rows]).sum()),
    )


def _latest_s(view: View, rows: npt.NDArray[np.int64], times: Latency) -> Floats:
    """Return the latest starts that meet equations 7 to 9.

    A request with both forms of objective must meet both; one without any always meets it (ours).
    """
    by_deadline = view.deadline_s[rows] - view.now_s - times.e2e_s  # equation 8
    ttft_s = view.arrival_s[rows] + view.ttft_s[rows] - view.now_s - times.ttft_s  # equation 9
    rate, started = view.rate[rows], view.generated[rows] > 0
    # A preempted request has its first token; was it ever late, no order mends that.
    ttft_s = np.where(started, np.where(view.late_s[rows] > 0, -np.inf, np.inf), ttft_s)
    paced = (rate != NO_READER) & (rate != FIRST_TOKEN_ONLY)
    too_slow = paced & (times.tpot_s * np.where(paced, rate, 1.0) > 1.0)
    return np.where(too_slow, -np.inf, np.minimum(by_deadline, ttft_s))
