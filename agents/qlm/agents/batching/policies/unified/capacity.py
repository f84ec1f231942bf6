"""Capacity of an instance: tokens per second of a full batch, the prompts of its answers paid.

    capacity = 1 / (step(B) / B + p a / m)
    B = min(batch slots, M / (p + E[o^2] / (2 E[o]) + block))

M: tokens of the KV cache. p: mean prompt. a: time per token of a prompt. o: tokens of an answer, of mean m.

A request that is seen in a batch is a long one more often than not, and half done: it has E[o^2] / (2 E[o])
tokens of its answer. With m / 2 instead, the capacity is 40 % too high for usual lengths, and all stall.
"""

from qlm.agents.batching.view import Pace, View


def capacity(view: View) -> float:
    """Return the output tokens per second that the instance can give to readers and deadlines."""
    pace, machine = view.pace, view.machine
    mean = max(1.0, pace.answer_mean)
    context = pace.prompt_mean + answer_in_batch(pace)
    fits = machine.kv_blocks * machine.block_tokens / (context + machine.block_tokens)
    batch = max(1.0, min(machine.seqs_max, fits))
    step_ms = machine.iteration.ms(tokens=batch, context_tokens=batch * context, sequences=batch, mixed=False)
    prompt_ms = pace.prompt_mean * prompt_token_s(view) * 1000 + machine.iteration.admission_ms
    return 1000 / (step_ms / batch + prompt_ms / mean)


def answer_in_batch(pace: Pace) -> float:
    """Return the tokens of its answer that a running request has, on average."""
    mean = max(1.0, pace.answer_mean)
    # No answers of positive length have a smaller second moment than equal ones.
    return max(mean**2, pace.answer_square_mean) / (2 * mean)


def prompt_token_s(view: View) -> float:
    """Return the time that one more token of a mean prompt takes, in a batch that is large already."""
    iteration = view.machine.iteration
    return (iteration.last_slope_ms + iteration.square_ms * view.pace.prompt_mean / 2) / 1000
