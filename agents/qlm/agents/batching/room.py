"""How many requests a policy that chooses among them wants in its engine."""

from typing import Final

from qlm.agents.batching.view import View

REQUESTS_MAX: Final = 512
"""Requests of one engine, running and waiting: the number for which the time of a decision is measured."""


def room_to_choose(view: View) -> int:
    """Return how many more requests the agent may submit: readers can only take turns inside the engine."""
    return max(0, REQUESTS_MAX - len(view.ids))
