"""Whose turn it is: who must run now, and who has enough unread to wait.

    urgent: slack - loads of those before it, and its own < 1 s
    spare:  inside, slack > 2 s + loads / 0.02 + texts computed again / 0.2

While the capacity has room for all members, a request that was preempted comes back when its slack ends. Then
the loads and texts are those of the members outside that have begun, and of one more: they take at most that
share of the time. The prompts of new ones are computed once, whichever request is preempted for them.

Else, they are those of all members, as if all took turns, with a round as long as all loads and texts over
their share. Readers would idle by turns otherwise, and more of them the more take part. Without the rule,
requests that need long loads displace each other without end (860 preemptions per request), or the link is
never free (QoE 0.906 instead of 0.929).

A load takes a small part of the time to compute the same text. With one share for both, rounds of loaded
texts would be so short that all have little unread, and in an overload all idle at once.
"""

from typing import Final

import numpy as np

from qlm.agents.batching.policies.unified.demands import Demands
from qlm.agents.batching.policies.unified.loads import Loads
from qlm.agents.batching.view import Flags, Floats, View

URGENT_S: Final = 1.0
"""Slack below which a request must run now: some quanta, and the time of an expected first token."""

SPARE_S: Final = 2.0
"""Least slack at which a reader may wait: it becomes urgent a second later at the earliest."""

LOADING_SHARE: Final = 0.02
"""Most of the link's time that goes into loads. In an overload of ten minutes, 0.950 of readers and deadlines
were met with it, and 0.919 with 0.2, at 0.52 and 1.03 preemptions per request
(docs/batch-policy-unified.md)."""

COMPUTING_SHARE: Final = 0.2
"""Most of the time that goes into texts that are computed again. Without host memory, QoE* of a burst was
0.943 with it, 0.864 with 0.05 and 0.820 with 0.02."""

TURNS_SHARE: Final = 0.8
"""Share of the capacity up to which readers are preempted early for each other. In a burst that the instance
can serve, QoE* was 0.974 with it and 0.960 without; beyond the capacity, it costs a fifth of the smooth
goodput (docs/batch-policy-unified.md)."""


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


def spare(view: View, needs: Demands, members: Flags, load: Loads, capacity: float) -> Flags:
    """Return which readers inside can wait while others run; a deadline that runs goes on.

    Args:
        view: The instance.
        needs: What the requests need.
        members: Who takes part.
        load: Time to load each.
        capacity: Tokens per second of the instance.
    """
    inside = members & view.inside
    round_s = (load.takes_s - load.computed_s) / LOADING_SHARE + load.computed_s / COMPUTING_SHARE
    turns_s = float(round_s[members].sum())
    if inside.any() and float(needs.pace[members].sum()) <= TURNS_SHARE * capacity:
        begun = members & ~view.inside & (view.generated > 0)
        turns_s = float(round_s[begun].sum()) + float(round_s[inside].mean())
    return np.asarray(inside & ~needs.timed & (needs.slack_s > SPARE_S + turns_s))
