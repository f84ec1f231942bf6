"""Gain of each request from being served in the next `dt`, for each batch size (Andes, equation 2)."""

from enum import Enum, auto

import numpy as np

from qlm.agents.batching.policies.andes.quality import PERFECT, Horizon, delivered, served
from qlm.agents.batching.readership import Readership
from qlm.agents.batching.restoring import restoring
from qlm.agents.batching.view import Floats, View


class Objective(Enum):
    """What the batch is chosen for."""

    AVERAGE = auto()
    """The mean quality (equation 2)."""
    MAX_MIN = auto()
    """The lowest quality (equation 6)."""
    PERFECT_COUNT = auto()
    """The number of requests of perfect quality (equation 7)."""


def gains(view: View, readers: Readership, steps_s: Floats, dt_s: float, objective: Objective) -> Floats:
    """Return the gain of each request by the duration of an iteration, shape (sizes, rows).

    A request outside the batch starts after its KV is restored (ours: the paper's Q_serve starts at once).
    One without a reader gains nothing, so it gets what capacity the others leave.

    Args:
        view: The instance.
        readers: Its requests as readers.
        steps_s: Duration of an iteration by batch size, shape (sizes).
        dt_s: Time to look forward.
        objective: What the batch is chosen for.
    """
    until = Horizon(readers, view.now_s + dt_s)
    now = delivered(readers, view.generated)
    waits = until.quality(now)  # Q_wait
    begin_s = view.now_s + restoring(view).least_s
    later = served(readers, now, begin_s, steps_s[:, None], view.now_s + dt_s)
    serves = until.quality(later)  # Q_serve(B)
    if objective is Objective.AVERAGE:
        gain = np.maximum(0.0, serves - waits)  # equation 2
    else:
        present = Horizon(readers, view.now_s).quality(now)
        if objective is Objective.MAX_MIN:
            lowest = present[readers.reads].min(initial=1.0)
            gain = np.broadcast_to(np.maximum(0.0, lowest - waits), serves.shape)  # equation 6
        else:
            wins = (serves >= PERFECT).astype(np.float64) - (waits >= PERFECT)
            gain = wins * (present >= PERFECT)  # equation 7
    return gain * readers.reads
