"""How long work that was done should have taken by the profile: what observed times are compared with."""

from qlm.domain.fleet import ServedWork
from qlm.rct_estimator.normal import Normal
from qlm.rct_estimator.profile import Profile
from qlm.rct_estimator.throughput import Workload, steady_state


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
    prompt, output = work.prompt_tokens / requests, max(1.0, work.output_tokens / requests)
    # A request met at random is (O + Var O / O) / 2 tokens into its output: the variance that shows
    # in the context. Without one, that of a constant length.
    var = 0.0 if context_tokens is None else output * (2 * (context_tokens - prompt) - output)
    workload = Workload(prompt_tokens=prompt, output=Normal(output, max(0.0, var)))
    state = steady_state(profile, workload, batch=work.request_s / work.busy_s)
    return requests * state.request_s
