"""Audits of a serving controller's plans, in a separate process beside planning."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

import orjson

from qlm.cli.processes.module import start_module
from qlm.cli.runtime.compiled_code import FOLDER_VARIABLE
from qlm.cli.runtime.plan_generator import PlanGenerator
from qlm.controller.core.decide import Decision
from qlm.controller.shell.metrics import ControllerMetrics
from qlm.domain.errors import QlmError
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shown import shown
from qlm.planner.audit import Audit, audit_from_plain
from qlm.planner.policy.misses import LATE_REQUESTS_MIN
from qlm.planner.published_plan import PLAN, PublishedPlan

log = logging.getLogger("qlm.cli")

EVERY_S: Final = 30.0
"""Plans are audited at most this often."""

LOOK_S: Final = 1.0
"""Time between checks for a plan to audit."""

AUDIT_MAX_S: Final = 120.0
"""An audit that takes longer is given up; the first one of an installation compiles for half a minute."""

_LOGGED_CHARACTERS: Final = 300


class AuditFailedError(QlmError):
    """An audit failed."""


class PlanAuditor:
    """Audits the latest plan if it misses deadlines, and exports the result.

    Args:
        metrics: Metrics of the controller: they have the latest plan, and take the audit.
        generator: Source of the plans; audits run its compiled code, and wait until that is ready.
        faults: Failures of the process.
    """

    def __init__(self, metrics: ControllerMetrics, generator: PlanGenerator, faults: FaultLog) -> None:
        self._metrics = metrics
        self._generator = generator
        self._faults = faults
        self._fails = False

    async def run(self) -> None:
        """Audit until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            turn = self._metrics.turn
            if turn is None or not self._generator.ready or not priced(turn.decision):
                continue
            if not misses(turn.decision):
                self._metrics.audited(turn, None)
                continue
            if (done := await self._audit(turn.decision)) is not None:  # else the last audit stands
                self._metrics.audited(turn, done)
            await asyncio.sleep(EVERY_S - LOOK_S)

    async def _audit(self, decision: Decision) -> Audit | None:
        try:
            done = await audit_beside(decision, self._generator.folder)
        except (AuditFailedError, OSError) as error:
            if not self._fails:
                log.warning("the plan is not audited, planning goes on: %s", error)
            self._fails = True
            return None
        except Exception as error:  # a bug: the next plan may be audited all the same
            self._faults.note(log, error, "the plan is not audited, planning goes on")
            return None
        self._fails = False
        return done


def priced(decision: Decision) -> bool:
    """Return True if the plan has a cost; a decision to keep the former plan has none."""
    return decision.plan.penalty_s is not None


def misses(decision: Decision) -> bool:
    """Return True if a plan costs at least as much as one that expects half a late request."""
    return (decision.plan.penalty_s or 0.0) >= LATE_REQUESTS_MIN * decision.problem.miss_weight_s


async def audit_beside(decision: Decision, code: Path | None) -> Audit:
    """Audit a plan in another process.

    Raises:
        AuditFailedError: It failed, took longer than `AUDIT_MAX_S`, or returned no audit.
        OSError: It cannot be started.
    """
    kept = PublishedPlan(
        at_ms=round(1000 * decision.problem.now_s), problem=decision.problem, plan=decision.plan
    )
    problem = await asyncio.to_thread(PLAN.encode, kept)
    env = None if code is None else {**os.environ, FOLDER_VARIABLE: str(code)}
    process = await start_module("qlm.planner.audit", env=env, reads=True, writes=True)
    try:
        async with asyncio.timeout(AUDIT_MAX_S):
            result, errors = await process.communicate(problem)
    except TimeoutError as error:
        raise AuditFailedError(f"it took longer than {AUDIT_MAX_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise AuditFailedError(errors.decode(errors="replace").strip()[-_LOGGED_CHARACTERS:] or "it failed")
    try:
        return audit_from_plain(orjson.loads(result))
    except ValueError as error:
        raise AuditFailedError(f"it returned {shown(result.decode(errors='replace'))}") from error
