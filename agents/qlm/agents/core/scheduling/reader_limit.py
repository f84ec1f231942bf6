"""Bound of the batch by its readers: no request starts that makes the batch slower than they read.

It holds for all requests, with and without an objective: each takes the same time of an iteration. What does
not start waits in the global queue, where plans may give it to another instance, or is late in time to yield
to those that are not. Engines with a batch policy share out their tokens themselves, and have no such bound.
"""

from qlm.agents.core.kv_ledger import UNBOUNDED
from qlm.agents.core.state import AgentState
from qlm.domain.ids import ModelId


def follow_readers(state: AgentState, model: ModelId, pace: float | None) -> None:
    """Set the limit for the readers that run and one that may start.

    Args:
        state: The agent.
        model: The awake model.
        pace: Tokens per second of what may start; None or 0 without a reader.
    """
    kv = state.requests.kv
    if not (kv.paces or pace) or kv.pool or not state.settings.bounds_readers:
        kv.paced_limit = UNBOUNDED
        return
    readers = dict(kv.paces)
    if pace:
        readers[pace] = readers.get(pace, 0) + 1
    limit = state.stats.readers.limit(model, readers, kv.seqs_max)
    kv.paced_limit = UNBOUNDED if limit is None else limit
