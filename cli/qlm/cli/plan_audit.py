"""Audits of the plans that a serving controller makes, in a process of their own: nobody waits for them."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Final

import orjson

from qlm.cli.compiled_code import FOLDER_VARIABLE
from qlm.cli.plan_generator import PlanGenerator
from qlm.controller.metrics import ControllerMetrics
from qlm.controller.protocol import Decision
from qlm.domain.errors import QlmError
from qlm.domain.shown import shown
from qlm.planner.audit import Audit, audit_from_plain
from qlm.planner.kept_plan import KeptPlan, kept_plan_to_plain
from qlm.planner.policy.missed import LATE_REQUESTS_MIN

log = logging.getLogger("qlm.cli")

EVERY_S: Final = 30.0
"""Plans are audited at most this often."""

LOOK_S: Final = 1.0
"""How often is looked whether there is a plan to audit."""

AUDIT_MAX_S: Final = 120.0
"""An audit that takes longer is given up; the first one of an installation compiles for half a minute."""

_LAST_WORDS: Final = 300


class AuditFailedError(QlmError):
    """An audit did not come to its end."""


class PlanAuditor:
    """Audits the latest plan whenever it misses something, and tells the metrics.

    Args:
        metrics: Knows the latest plan, and takes the audit.
        generator: Made the plans; audits run its compiled code, and wait until that is there.
    """

    def __init__(self, metrics: ControllerMetrics, generator: PlanGenerator) -> None:
        self._metrics = metrics
        self._generator = generator
        self._fails = False

    async def run(self) -> None:
        """Audit until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            turn = self._metrics.turn
            if turn is None or not self._generator.ready or not priced(turn.decision):
                continue
            if not misses(turn.decision):
                self._metrics.audited(None)
                continue
            self._metrics.audited(await self._audit(turn.decision))
            await asyncio.sleep(EVERY_S - LOOK_S)

    async def _audit(self, decision: Decision) -> Audit | None:
        try:
            done = await audit_beside(decision, self._generator.folder)
        except (AuditFailedError, OSError) as error:
            if not self._fails:
                log.warning("the plan is not audited, planning goes on: %s", error)
            self._fails = True
            return None
        self._fails = False
        return done


def priced(decision: Decision) -> bool:
    """Whether it is known what a plan costs; one that only lets the former one stand does not tell."""
    return decision.plan.penalty_s is not None


def misses(decision: Decision) -> bool:
    """Whether a plan costs as much as one that expects half a request to be late."""
    return (decision.plan.penalty_s or 0.0) >= LATE_REQUESTS_MIN * decision.problem.miss_weight_s


async def audit_beside(decision: Decision, code: Path | None) -> Audit:
    """Audit a plan in another process.

    Raises:
        AuditFailedError: It failed, took longer than `AUDIT_MAX_S`, or said something else than an audit.
        OSError: It cannot be started.
    """
    kept = KeptPlan(at_ms=round(1000 * decision.problem.now_s), problem=decision.problem, plan=decision.plan)
    asked = await asyncio.to_thread(_written, kept)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "qlm.planner.audit"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=None if code is None else {**os.environ, FOLDER_VARIABLE: str(code)},
    )
    try:
        async with asyncio.timeout(AUDIT_MAX_S):
            said, words = await process.communicate(asked)
    except TimeoutError as error:
        raise AuditFailedError(f"it took longer than {AUDIT_MAX_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise AuditFailedError(words.decode(errors="replace").strip()[-_LAST_WORDS:] or "it failed")
    try:
        return audit_from_plain(orjson.loads(said))
    except ValueError as error:
        raise AuditFailedError(f"it said {shown(said.decode(errors='replace'))}") from error


def _written(kept: KeptPlan) -> bytes:
    return orjson.dumps(kept_plan_to_plain(kept))
