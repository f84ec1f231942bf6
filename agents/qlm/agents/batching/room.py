"""How many requests a policy that chooses among them wants in its engine."""

from typing import Final

from qlm.agents.batching.view import View

REQUESTS_MAX: Final = 512
"""Most requests in an engine with a batch policy: the number for which the time of a decision is bounded. The
others wait in the global queue, where plans order them; 512 are two full batches of vLLM's default size."""


def room_to_choose(view: View) -> int:
    """Return how many more requests the agent may submit: readers can only take turns inside the engine."""
    return max(0, max(REQUESTS_MAX, 2 * view.machine.seqs_max) - len(view.ids))
