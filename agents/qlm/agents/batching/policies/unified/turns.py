"""Whose turn it is: who must run now, and who has enough unread to wait.

    urgent: slack - loads of those before it, and its own < 1 s
    spare:  inside, slack > 2 s + sum of the members' loads / 0.2

Were all members to take turns, each would be loaded once per round. With a round as long as five times all
loads, loading takes at most a fifth of the time. Without the rule, requests that need long loads displace
each other without end (860 preemptions per request), or the link is never free (QoE 0.906 instead of 0.929).
"""

from typing import Final

import numpy as np

from qlm.agents.batching.policies.unified.demands import Demands
from qlm.agents.batching.view import Flags, Floats, View

URGENT_S: Final = 1.0
"""Slack below which a request must run now: some quanta, and the time of an expected first token."""

SPARE_S: Final = 2.0
"""Least slack at which a reader may wait: it becomes urgent a second later at the earliest."""

LOADING_SHARE: Final = 0.2
"""Most of the time that goes into loads, if all members take turns."""


def urgent(view: View, needs: Demands, members: Flags, takes_s: Floats, wait_s: float) -> Flags:
    """Return which members must run now.

    Args:
        view: The instance.
        needs: What the requests need.
        members: Who takes part.
        takes_s: Time to load each.
        wait_s: How long the link is busy.
    """
    inside = view.inside
    due = members & inside & (needs.slack_s < URGENT_S)
    rows = (members & ~inside).nonzero()[0]
    rows = rows[np.argsort(needs.slack_s[rows], kind="stable")]
    due[rows] = needs.slack_s[rows] - np.cumsum(takes_s[rows]) - wait_s < URGENT_S
    return np.asarray(due)


def spare(view: View, needs: Demands, members: Flags, takes_s: Floats) -> Flags:
    """Return which readers inside can wait while others run; a deadline that runs goes on."""
    round_s = float(takes_s[members].sum()) / LOADING_SHARE
    return np.asarray(members & view.inside & ~needs.timed & (needs.slack_s > SPARE_S + round_s))
