"""How long work that was done should have taken by the profile: what observed times are compared with."""

from qlm.domain.fleet import ServedWork
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profile import Profile
from qlm.rct_estimator.throughput import full_batch, steady_state
from qlm.rct_estimator.workload import Workload


def served_work_s(
    profile: Profile, work: ServedWork, *, started: int, context_tokens: float | None = None
) -> float:
    """Predict the busy time of an interval from what was served in it and the mean batch that served it.

    Requests are counted as those that started or ended, whichever are more; the count matters little,
    since prompts and output are given as totals. The time is that of `steady_state` at the batch that was.

    Args:
        profile: Of the model on the instance's accelerator.
        work: What was done in the interval; some output and some busy time.
        started: Requests that got their place in it.
        context_tokens: Mean tokens of KV cache per running request, if known.

    Returns:
        Seconds, without any correction.
    """
    requests = max(1, started, work.ended)
    computed_tokens = max(0, work.prompt_tokens - work.withdrawn_tokens)
    prompt, output = computed_tokens / requests, max(1.0, work.output_tokens / requests)
    held_ratio = 1.0
    if context_tokens is not None and prompt:
        held_ratio = max(0.0, context_tokens - output / 2) / prompt
    workload = Workload(prompt_tokens=prompt, output=Normal(output), held_ratio=held_ratio)
    batch = work.request_s / work.busy_s
    state = steady_state(profile, workload, batch=batch)
    # The batch is known as a mean over time, and that of iterations is wanted. Long iterations have large
    # batches: all of an iteration but its constant goes with the batch or comes with an arrival, whose
    # variance is the mean while places are free (Poisson) and 0 when all are taken.
    excess = max(0.0, 1 - batch / full_batch(profile, workload)) * (1 - state.alone_s / state.iteration_s)
    return requests * steady_state(profile, workload, batch=batch - excess).request_s
