"""The shared state as a pure state machine, under the in-process stores and the simulator."""

from qlm.store.plans import PlanOps


class StoreCore(PlanOps):
    """All operations of `qlm.domain.ports.store.Store`, synchronous, with time as an argument.

    An operation that changes anything returns (answer, `Effects`); a read returns its answer.
    """
