"""The requests of a view as TokenFlow weighs them: buffers, and utility (equations 1 and 3)."""

from typing import NamedTuple

import numpy as np

from qlm.agents.batching.clipping import clipped
from qlm.agents.batching.packing import Packing
from qlm.agents.batching.policies.tokenflow.options import Options, Unit
from qlm.agents.batching.readership import Readership, readership
from qlm.agents.batching.restoring import Restoring, restoring
from qlm.agents.batching.step_time import step_time
from qlm.agents.batching.view import Flags, Floats, View
from qlm.domain.streaming.token_value import FULL_SHARE, NOTHING_SHARE


class Candidates(NamedTuple):
    """A view, and columns with one entry per row.

    Attributes:
        view: The instance.
        inside: Who has a batch slot or is loading.
        packing: Its packing: those inside need no room for growth, and who comes in leaves a block each.
        rate: Pace of each reader, tokens per second; 0 without one.
        restore: Times to bring back what is outside.
        buffer_s: Time until the reader has read what it has: 0 before the first token, inf without a reader.
        phi: Urgency of the buffer, from 0 to 1.
        tokens: Weighted tokens of the next quantum: v t'.
        utility: Gain of being served in the next quantum.
    """

    view: View
    inside: Flags
    packing: Packing
    rate: Floats
    restore: Restoring
    buffer_s: Floats
    phi: Floats
    tokens: Floats
    utility: Floats


def candidates(view: View, options: Options) -> Candidates:
    """Return the requests of a view. Without a reader one is worth nothing, and takes what is left.

    Equation 3, v t - gamma phi(b), as written takes off more, the emptier the buffer of a request that is
    served. The text wants the opposite. Ours is the gain of serving, with predicted buffers (section 3.3):

        v t' + gamma (phi(b if not served) - phi(b if served)),    t' = quantum - t_overhead
    """
    readers, restore = readership(view), restoring(view)
    inside, quantum_s = view.inside, options.quantum_s
    step_s = step_time(view).s(max(1, int(np.count_nonzero(inside))))
    unread = clipped((readers.read_end_s - view.now_s) * readers.rate, 0.0, view.generated)
    time_s = np.maximum(0.0, quantum_s - restore.least_s)
    generated = np.minimum(time_s / step_s, readers.answer - view.generated)
    left = unread - readers.rate * quantum_s
    tokens = _weight(unread, readers.answer) * generated
    saved = _phi(np.maximum(0.0, left), readers, options) - _phi(
        np.maximum(0.0, left + generated), readers, options
    )
    utility = tokens + options.gamma * quantum_s / step_s * saved
    reads = readers.reads
    return Candidates(
        view,
        inside,
        Packing(view, leaves=~inside),
        np.where(reads, readers.rate, 0.0),
        restore,
        np.where(reads, unread / readers.rate, np.inf),
        _phi(unread, readers, options) * reads,
        tokens * reads,
        utility * reads,
    )


def _phi(unread: Floats, readers: Readership, options: Options) -> Floats:
    """Return phi(b) = e^-b (section 4.2.2)."""
    return np.exp(-unread / readers.rate if options.phi_unit is Unit.SECONDS else -unread)


def _weight(unread: Floats, answer: Floats) -> Floats:
    """Return the weight of the next token (equation 1): 1 to 10 % of the answer unread, 0 from 20 %."""
    return clipped((NOTHING_SHARE - unread / answer) / (NOTHING_SHARE - FULL_SHARE), 0.0, 1.0)
