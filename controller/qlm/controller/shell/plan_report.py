"""Report of the latest decision: plan for operators, admission signal and token clusters for gateways."""

import asyncio
import logging
from functools import partial
from typing import Final

from qlm.agents.core.scheduling.visits.backlog import Patience
from qlm.controller.core.admission_signal import admission_signal
from qlm.controller.core.decide import Decision
from qlm.controller.core.estimating.snapshot import Snapshot
from qlm.domain.errors import InvalidValueError, NotLeadingError
from qlm.domain.formats.clusters import CLUSTERS, Clusters
from qlm.domain.leadership import Term
from qlm.domain.ports.published import PublishedKind
from qlm.domain.ports.store import ControllerStore
from qlm.domain.shell.faults import FaultLog
from qlm.planner.admission_signal import SIGNAL
from qlm.planner.problem import Plan, Problem
from qlm.planner.published_plan import PLAN, PublishedPlan

log = logging.getLogger("qlm.controller")

PERIOD_NS: Final = 1_000_000_000
"""Least time between two published plans, and usual one."""

BYTES_PER_S_MAX: Final = 1_000_000
"""Most bytes of plans per second: those of long queues take long to write, and are published less often."""

UNCHANGED_NS: Final = 10_000_000_000
"""Period of an unchanged plan: its age shows that a controller still plans."""

INLINE_GROUPS_MAX: Final = 100
"""Larger plans are encoded in a thread, since a gateway may share the loop (1600 groups take 4 ms)."""


Known = tuple[Problem, Plan, Clusters]


class PlanReporter:
    """Reports plans and admission signals of one controller; its failures never stop planning.

    The virtual queues of the plan reach the store before, by `apply` in `loop`.
    """

    def __init__(self, store: ControllerStore, faults: FaultLog, patience: Patience | None = None) -> None:
        self._store = store
        self._patience = patience
        self._faults = faults
        self._known: Known | None = None
        self._published_ns: int | None = None
        self._period_ns = PERIOD_NS

    async def publish(self, decision: Decision, now_ns: int, term: Term | None = None) -> None:
        """Publish the plan and the admission signal of an applied decision, if a period has passed.

        Args:
            decision: The decision.
            now_ns: Time of its view, nanoseconds since the epoch.
            term: Term of the controller.

        Raises:
            NotLeadingError: Another controller leads.
        """
        known = (decision.problem, decision.plan, decision.clusters.clusters)
        if not self._is_time(known, now_ns):
            return
        self._known, self._published_ns = known, now_ns
        published = PublishedPlan(at_ms=now_ns // 1_000_000, problem=decision.problem, plan=decision.plan)
        try:
            clusters = CLUSTERS.encode(decision.clusters.clusters)
            await self._store.publish(PublishedKind.CLUSTERS, clusters, term)
            await self._publish_signal(decision, term)
            large = len(decision.problem.groups) > INLINE_GROUPS_MAX
            data = await asyncio.to_thread(_encoded, published) if large else _encoded(published)
            await self._store.publish(PublishedKind.PLAN, data, term)
            self._period_ns = min(UNCHANGED_NS, max(PERIOD_NS, round(len(data) / BYTES_PER_S_MAX * 1e9)))
        except NotLeadingError:
            raise
        except Exception as error:
            self._known = None
            self._faults.note(log, error, "plan not published for `qlm plan show`; planning continues")

    def read_clusters(self, data: bytes | None) -> Clusters | None:
        """Return published clusters; None if there are none, or if they cannot be read."""
        if data is None:
            return None
        try:
            return CLUSTERS.decode(data)
        except InvalidValueError as error:
            log.warning("cannot read the published token clusters; they are found again: %s", error)
            return None

    async def _publish_signal(self, decision: Decision, term: Term | None) -> None:
        if decision.snapshot is None:
            return
        signal = partial(_signal, decision.snapshot, decision.problem, decision.plan, self._patience)
        large = len(decision.problem.groups) > INLINE_GROUPS_MAX
        data = await asyncio.to_thread(signal) if large else signal()
        await self._store.publish(PublishedKind.SIGNAL, data, term)

    def _is_time(self, known: Known, now_ns: int) -> bool:
        # abs: after the clock was set back, the old plan must not stay for that time.
        since_ns = self._period_ns if self._published_ns is None else abs(now_ns - self._published_ns)
        return since_ns >= self._period_ns and (since_ns >= UNCHANGED_NS or known != self._known)


def _signal(snapshot: Snapshot, problem: Problem, plan: Plan, patience: Patience | None) -> bytes:
    return SIGNAL.encode(admission_signal(snapshot, problem, plan, patience))


def _encoded(published: PublishedPlan) -> bytes:
    return PLAN.encode(published)
