"""What a batch policy decides, and its interface."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from qlm.agents.batching.view import View
from qlm.domain.ids import RequestId


class Decision(NamedTuple):
    """The requests that should be in the batch, until the next decision.

    The host keeps who is in `run` and inside, and preempts who is inside and not in `run`, unless pinned. It
    then admits the others in order while blocks and batch slots last. If blocks run out later, it preempts
    the last of `run` first.

    Attributes:
        run: Requests in order of admission; it may name more than fit.
        hold: Those of them that keep blocks and batch slot and compute nothing.
        recompute: Those whose KV is computed again when they are admitted, even if host memory has it.
        skips: A request that does not fit lets later ones of `run` in; else they wait behind it.
        again_s: When to decide again; None for the next arrival or end.
    """

    run: Sequence[RequestId]
    hold: frozenset[RequestId] = frozenset()
    recompute: frozenset[RequestId] = frozenset()
    skips: bool = False
    again_s: float | None = None


class BatchPolicy(Protocol):
    """Rule of one instance. It may remember earlier views, and knows nothing else of the past.

    Equal views in equal order give equal decisions.
    """

    def decide(self, view: View) -> Decision:
        """Choose the batch. Asked at each arrival and end, and at `Decision.again_s`."""
        ...

    def room(self, view: View) -> int:
        """Return how many more requests the agent may submit to the engine; 0 or more."""
        ...
