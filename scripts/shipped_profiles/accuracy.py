"""Errors of the shipped profiles at published measurements."""

from dataclasses import replace
from functools import cache
from typing import Final

from qlm.rct_estimator.profiles.iteration import IterationTime, pairs_of
from scripts.shipped_profiles.hardware import A100, HARDWARE
from scripts.shipped_profiles.models import MODELS, OTHERS
from scripts.shipped_profiles.published import Batch, FirstToken, Pace, Row, Table
from scripts.shipped_profiles.times import iteration_time

PROMPTS_TOKENS_MAX: Final = 8192
"""Tokens of prompts in one iteration of a batch that starts together."""

JUDGED: Final = HARDWARE | {"A100-40GB": replace(A100, bytes_per_s=1555e9)}


@cache
def judged_iteration(model: str, accelerator: str, gpus: int) -> IterationTime:
    """Return the coefficients: those of the shipped file where there is one."""
    return iteration_time((MODELS | OTHERS)[model], JUDGED[accelerator], gpus)


def predicted_ms(table: Table, row: Row) -> float:
    """Return what the profile says of a measurement, milliseconds."""
    iteration = judged_iteration(table.model, table.accelerator, table.gpus)
    match row:
        case Pace(sequences, context, _):
            return decode_ms(iteration, sequences, context)
        case FirstToken(prompt, _):
            return prompts_ms(iteration, 1, prompt)
        case Batch(sequences, prompt, output, _):
            return batch_ms(iteration, sequences, prompt, output)


def error(table: Table, row: Row) -> float:
    """Return the relative error of the profile: negative where it is too fast."""
    return predicted_ms(table, row) / row.ms - 1


def decode_ms(iteration: IterationTime, sequences: int, context: float) -> float:
    return iteration.ms(
        tokens=sequences, context_tokens=sequences * context, sequences=sequences, mixed=False
    )


def prompts_ms(iteration: IterationTime, prompts: int, tokens: int) -> float:
    return iteration.ms(
        tokens=prompts * tokens,
        context_tokens=0,
        sequences=prompts,
        pairs=prompts * pairs_of(tokens),
        mixed=True,
    )


def batch_ms(iteration: IterationTime, sequences: int, prompt: int, output: int) -> float:
    """Return the time of equal requests: whole prompts, then the other tokens of the answers."""
    at_once = max(1, PROMPTS_TOKENS_MAX // prompt)
    whole, rest = divmod(sequences, at_once)
    prompts = whole * prompts_ms(iteration, at_once, prompt)
    prompts += prompts_ms(iteration, rest, prompt) if rest else 0.0
    # The context grows by one token an iteration, so that its mean counts.
    return prompts + (output - 1) * decode_ms(iteration, sequences, prompt + output / 2)
