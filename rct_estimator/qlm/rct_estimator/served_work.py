"""Predicted time of observed work, to compare with the time that it took."""

from qlm.domain.fleet import ServedWork
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.throughput import full_batch, steady_state
from qlm.rct_estimator.workload import Workload


def served_work_s(
    profile: Profile,
    work: ServedWork,
    *,
    started: int,
    context_tokens: float | None = None,
    prompt_cv2: float = 0.0,
) -> float:
    """Return the busy time of an interval predicted by the profile, seconds, without correction.

    It is the time of `steady_state` at the observed mean batch. Requests are counted as the larger of started
    and ended ones. The count matters little, since prompts and output are totals.

    Args:
        profile: Profile of the model on the accelerator of the instance.
        work: Work of the interval, with some output and some busy time.
        started: Requests that started in it.
        context_tokens: Mean KV cache tokens per running request, if known.
        prompt_cv2: Squared coefficient of variation of the prompts: the mean iteration depends on it.
    """
    requests = max(1, started, work.ended)
    computed_tokens = max(0, work.prompt_tokens - work.withdrawn_tokens)
    prompt, output = computed_tokens / requests, max(1.0, work.output_tokens / requests)
    prompt_bias = 1.0
    if context_tokens is not None and prompt:
        prompt_bias = max(0.0, context_tokens - output / 2) / prompt
    workload = Workload(
        prompt_tokens=prompt,
        output=Normal(output),
        prompt_var=prompt_cv2 * prompt**2,
        prompt_bias=prompt_bias,
        cached_share=min(1.0, work.cached_tokens / computed_tokens) if computed_tokens else 0.0,
    )
    batch = work.request_s / work.busy_s
    state = steady_state(profile, workload, batch=batch)
    # The observed batch is a mean over time; the model needs the mean over iterations. Long iterations have
    # large batches: all of an iteration but its constant goes with the batch or comes with an arrival.
    # The variance of arrivals is their mean while slots are free (Poisson), and 0 when all are taken.
    excess = max(0.0, 1 - batch / full_batch(profile, workload)) * (1 - state.alone_s / state.iteration_s)
    return requests * steady_state(profile, workload, batch=batch - excess).request_s
