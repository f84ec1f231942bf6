"""An engine after equations 14 and 15 of SLO-aware annealing, whose batch a policy chooses.

Prompts of requests that come in together are one iteration, which delays the others, as in vLLM 0.6. All
requests arrive at 0.
"""

from math import inf
from typing import NamedTuple

import numpy as np

from benchmarks.annealing_cases import E2E_S, TPOT_S, TTFT_S, V100, Floats, Requests
from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.view import Place, View
from qlm.rct_estimator.profiles.iteration import IterationTime
from support.batch_views import MACHINE, Row, view


class Outcome(NamedTuple):
    """What n requests lived through.

    Attributes:
        latency_s: End-to-end latency of each.
        met: Which met their objective.
    """

    latency_s: Floats
    met: Floats

    @property
    def value(self) -> float:
        """G of equation 2."""
        return float(self.met.sum() / self.latency_s.sum())


def run(requests: Requests, policy: BatchPolicy, batch_max: int, expected: Floats) -> Outcome:
    """Serve requests; the policy is asked at the arrival and at each end, and expects those lengths."""
    n = len(requests.chat)
    made, first_s, end_s = np.zeros(n), np.full(n, inf), np.full(n, inf)
    inside: list[int] = []
    now_s = 0.0
    while np.isinf(end_s).any():
        waiting = [at for at in _chosen(requests, policy, batch_max, expected, made, inside, end_s, now_s)]
        joining = [at for at in waiting if at not in inside][: batch_max - len(inside)]
        if joining:
            now_s += V100.prefill.ms(len(joining), float(requests.prompt[joining].mean())) / 1e3
            first_s[joining] = now_s
            inside += joining
        now_s += _decoded_s(requests, inside, made)
        ended = [at for at in inside if made[at] >= requests.output[at]]
        end_s[ended] = now_s
        inside = [at for at in inside if at not in ended]
    tpot_s = (end_s - first_s) / requests.output
    chat_met = (first_s <= requests.tightness * TTFT_S) & (tpot_s <= TPOT_S)
    met = np.where(requests.chat, chat_met, end_s <= requests.tightness * E2E_S)
    return Outcome(end_s, met.astype(np.float64))


def _decoded_s(requests: Requests, inside: list[int], made: Floats) -> float:
    """Decode until the next end; return the seconds, equation 16 for a batch."""
    tokens = float((requests.output[inside] - made[inside]).min())
    context = float((requests.prompt[inside] + made[inside]).mean()) + (tokens + 1) / 2
    made[inside] += tokens
    return tokens * V100.decode.ms(len(inside), context) / 1e3


def _chosen(
    requests: Requests,
    policy: BatchPolicy,
    batch_max: int,
    expected: Floats,
    made: Floats,
    inside: list[int],
    end_s: Floats,
    now_s: float,
) -> list[int]:
    left = [at for at in range(len(end_s)) if np.isinf(end_s[at])]
    seen = seen_by_policy(requests, batch_max, expected, made, inside, left, now_s)
    return [int(id) for id in policy.decide(seen).run]


def seen_by_policy(
    requests: Requests,
    batch_max: int,
    expected: Floats,
    made: Floats,
    inside: list[int],
    left: list[int],
    now_s: float,
) -> View:
    """Return the view of the requests that are left; their ids are their numbers."""
    rows = [
        Row(
            str(at),
            place=Place.INSIDE if at in inside else Place.OUTSIDE,
            prompt=int(requests.prompt[at]),
            generated=int(made[at]),
            left_mean=max(1.0, float(expected[at] - made[at])),
            rate=1 / TPOT_S if requests.chat[at] else inf,
            ttft_s=requests.tightness * TTFT_S if requests.chat[at] else inf,
            deadline_s=inf if requests.chat[at] else requests.tightness * E2E_S,
        )
        for at in left
    ]
    machine = MACHINE._replace(iteration=IterationTime.constant(16.0), kv_blocks=20_000, seqs_max=batch_max)
    return view(*rows, machine=machine, now_s=now_s)
