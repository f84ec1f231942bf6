"""Duration of an iteration by batch size, and what an engine generates in the long run."""

from typing import Final, NamedTuple

import numpy as np

from qlm.agents.batching.view import Floats, Ints, View
from qlm.rct_estimator.profiles.iteration import IterationTime

MEASURED_MIN: Final = 0.5
MEASURED_MAX: Final = 4.0
"""Bounds of measured over modelled duration: beyond them the measurement is of something else."""


class StepTime(NamedTuple):
    """Duration of an iteration that decodes, as a function of the batch size alone (Andes, appendix B).

    Attributes:
        iteration: Coefficients.
        context: Mean text of a request, tokens: each counts with it.
        scale: Measured over modelled duration.
    """

    iteration: IterationTime
    context: float
    scale: float = 1.0

    def s(self, size: int) -> float:
        """Return the duration for a batch of that size, seconds."""
        time = self.iteration
        per_request_ms = time.kv_ms * self.context + time.sequence_ms
        return self.scale * (time.host_ms + time.linear(size) + per_request_ms * size) / 1000


def step_time(view: View) -> StepTime:
    """Return the durations for the requests of a view, scaled to what the host measured of the batch."""
    context = int(view.prompt.sum() + view.generated.sum()) / max(1, len(view.ids))
    modelled = StepTime(view.machine.iteration, context)
    running = int(np.count_nonzero(view.place))
    if not running or view.pace.step_s <= 0:
        return modelled
    ratio = view.pace.step_s / modelled.s(running)
    return modelled._replace(scale=min(MEASURED_MAX, max(MEASURED_MIN, ratio)))


def prompt_token_s(view: View) -> float:
    """Return the time of one token in an iteration that is full of prompts, without attention, seconds."""
    time, most = view.machine.iteration, view.machine.batched_tokens_max
    return (time.linear(most) + time.host_ms) / most / 1000


def prompt_share_s(view: View, tokens: Ints) -> Floats:
    """Return what the tokens of each request add to iterations that are full of prompts, seconds."""
    pair_s = view.machine.iteration.square_ms / 2000
    return np.asarray(tokens * (prompt_token_s(view) + pair_s * tokens))


def capacity_tokens_per_s(view: View) -> float:
    """Return the output tokens per second of a full batch that computes its prompts too (ours).

        1 / (tau(B) / B + prompt seconds per output token)

    B requests fill the KV cache. One that is looked at by chance has a text of prompt plus E[o^2] / 2 E[o]:
    long answers run longer. Taken by the mean, B is up to 40 % too large.
    """
    pace, machine = view.pace, view.machine
    answer = max(1.0, pace.answer_mean)
    context = pace.prompt_mean + max(answer / 2, pace.answer_square_mean / (2 * answer))
    in_memory = machine.kv_blocks * machine.block_tokens / (context + machine.block_tokens)
    size = max(1, min(machine.seqs_max, int(in_memory)))
    step_s = StepTime(machine.iteration, context).s(size)
    pair_s = machine.iteration.square_ms / 2000
    prompt_s = pace.prompt_mean * (prompt_token_s(view) + pair_s * pace.prompt_mean)
    return 1 / (step_s / size + prompt_s / answer)
