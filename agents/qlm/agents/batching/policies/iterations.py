"""Duration of an iteration, for policies that count in iterations."""

from qlm.agents.batching.view import View


def step_s(view: View) -> float:
    """Return the smoothed duration of an iteration; before the first one, that of one sequence by profile."""
    if view.pace.step_s > 0:
        return view.pace.step_s
    return view.machine.iteration.ms(tokens=1, context_tokens=0, sequences=1, mixed=False) / 1000
