"""Number of requests that a policy that chooses among them wants in its engine."""

from typing import Final

from qlm.agents.batching.view import View

REQUESTS_MAX: Final = 2048
"""Most requests in an engine with a batch policy. The others wait in the global queue by arrival, whatever
their readers need: on mixed work at 1.2 times of what an A100 serves, `unified` met 0.77 of all objectives of
two minutes with 512, and 0.98 with 2048 (docs/batch-policy-unified.md)."""

IDLE_MAX_S: Final = 10.0
"""Idle time after which a reader yields to others: of the users, 28 % are still there
(`goodput.HALF_LIFE_S`)."""


def room_to_choose(view: View) -> int:
    """Return how many more requests the agent may submit: readers can only take turns inside the engine."""
    return max(0, max(REQUESTS_MAX, 2 * view.machine.seqs_max) - len(view.ids))
