"""Keeps the latest plan in the store, for those who look, and its forecast for admission."""

import asyncio
import logging
from functools import partial
from typing import Final

import orjson

from qlm.controller.estimating.moment import Moment
from qlm.controller.protocol import Decision
from qlm.controller.signalling import admission_signal
from qlm.domain.errors import InvalidValueError, StoreUnavailableError
from qlm.domain.leadership import Term
from qlm.domain.ports.store import Store
from qlm.planner.admission_signal import signal_to_plain
from qlm.planner.kept_plan import KeptPlan, kept_plan_to_plain
from qlm.planner.problem import Plan, Problem

log = logging.getLogger("qlm.controller")

PERIOD_NS: Final = 1_000_000_000
"""Plans are kept at most this often."""

UNCHANGED_NS: Final = 10_000_000_000
"""One that does not change is kept this often: its age tells that somebody still plans."""

INLINE_GROUPS_MAX: Final = 100
"""Larger plans are written down on a thread: a gateway may share the loop (1600 groups take 4 ms)."""


class PlanKeeper:
    """Keeps the plans and forecasts of one controller; whatever goes wrong with it, planning goes on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: tuple[Problem, Plan] | None = None
        self._kept_ns: int | None = None
        self._fails = False

    async def keep(self, decision: Decision, now_ns: int, term: Term | None = None) -> None:
        """Keep the plan of a decision that has been applied, and its forecast, if it is time.

        Args:
            decision: What was decided.
            now_ns: The moment that it was decided for, nanoseconds since the epoch.
            term: That of the controller which decided.

        Raises:
            NotLeadingError: Another controller leads.
        """
        known = (decision.problem, decision.plan)
        if not self._is_time(known, now_ns):
            return
        self._known, self._kept_ns = known, now_ns
        kept = KeptPlan(at_ms=now_ns // 1_000_000, problem=decision.problem, plan=decision.plan)
        try:
            await self._keep_signal(decision, term)
            large = len(decision.problem.groups) > INLINE_GROUPS_MAX
            data = await asyncio.to_thread(_written, kept) if large else _written(kept)
            await self._store.keep_plan(data, term)
            self._fails = False
        except (StoreUnavailableError, InvalidValueError, orjson.JSONEncodeError) as error:
            self._known = None
            if not self._fails:
                log.warning("the plan is not kept for `qlm plan show`; planning goes on: %s", error)
            self._fails = True

    async def _keep_signal(self, decision: Decision, term: Term | None) -> None:
        if decision.moment is None:
            return
        signal = partial(_signal, decision.moment, decision.problem, decision.plan)
        large = len(decision.problem.groups) > INLINE_GROUPS_MAX
        await self._store.keep_signal(await asyncio.to_thread(signal) if large else signal(), term)

    def _is_time(self, known: tuple[Problem, Plan], now_ns: int) -> bool:
        # A clock that was set back must not keep the old plan there for as long.
        since_ns = PERIOD_NS if self._kept_ns is None else abs(now_ns - self._kept_ns)
        return since_ns >= PERIOD_NS and (since_ns >= UNCHANGED_NS or known != self._known)


def _signal(moment: Moment, problem: Problem, plan: Plan) -> bytes:
    return orjson.dumps(signal_to_plain(admission_signal(moment, problem, plan)))


def _written(kept: KeptPlan) -> bytes:
    return orjson.dumps(kept_plan_to_plain(kept))
