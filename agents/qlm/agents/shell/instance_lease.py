"""The lease of an instance, which one session of its agent has at a time and renews by heartbeats."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from qlm.agents.shell.side_effects import RETRY_S
from qlm.domain.errors import InstanceHeldError
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import SessionId
from qlm.domain.lease import AgentProcess, Claim, Holder, InstanceHeld, claim
from qlm.domain.ports.agent_store import AgentStore
from qlm.domain.shell.faults import FaultLog

log = logging.getLogger("qlm.agents")

HEARTBEAT_TTL_S: Final = 3.5
"""Validity of a heartbeat: then the instance counts as dead, and its requests go to others."""

REFUSED_TTL_S: Final = 600.0
"""Time for which `qlm doctor` names an instance of which a second agent was refused."""


class InstanceLease:
    """The lease of an instance as one session knows it.

    Attributes:
        taken_by: The session that took it over from this one; the agent must stop then.
    """

    def __init__(
        self,
        holder: Holder,
        store: AgentStore,
        faults: FaultLog,
        process: AgentProcess | None,
        has_ended: Callable[[AgentProcess], bool],
    ) -> None:
        """Begin without the lease.

        Args:
            holder: The session.
            store: The shared state, which has the lease.
            faults: Failures of the process.
            process: Process of the session; None if unknown.
            has_ended: Returns True if a process that `process` sees is certainly gone.
        """
        self.taken_by: InstanceHeld | None = None
        self._holder = holder
        self._store = store
        self._faults = faults
        self._process = process
        self._has_ended = has_ended
        self._valid_until_s = 0.0

    @property
    def valid(self) -> bool:
        """True unless the lease may have lapsed: the agent must not take work then."""
        return self.taken_by is None and asyncio.get_running_loop().time() < self._valid_until_s

    async def acquire(self, status: Callable[[], InstanceStatus], *, patient: bool) -> None:
        """Wait for the lease.

        Args:
            status: Returns the status to report.
            patient: Wait for as long as another agent has it.

        Raises:
            InstanceHeldError: Another agent has it, and renews it.
        """
        loop = asyncio.get_running_loop()
        until_s: float | None = None
        last: Claim | None = None
        replaces: SessionId | None = None
        while True:
            asked_s = loop.time()
            if (refusal := await self._tried(status(), replaces)) is None:
                return
            if until_s is None:
                until_s = loop.time() + refusal.lapses_in_s
            ended = refusal.process is not None and self._has_ended(refusal.process)
            # The answer may come late: it is as old as its question.
            step = claim(refusal, self._process, ended=ended, overdue=asked_s >= until_s)
            if step is Claim.GIVE_UP and step is not last:
                await self._report(refusal)
            if step is Claim.GIVE_UP and not patient:
                raise InstanceHeldError(self._text(refusal))
            if step is not last:
                self._say(step, refusal)
            last, replaces = step, refusal.session if step is Claim.TAKE_OVER else None
            if replaces is None:
                await asyncio.sleep(RETRY_S)

    async def renew(self, status: InstanceStatus) -> bool:
        """Send a heartbeat; return True if that shows that another session has taken the lease over.

        Raises:
            StoreUnavailableError: As the store.
        """
        if self.taken_by is not None:
            return False
        refusal = await self._beat(status, None)
        if refusal is None or self.taken_by is not None:
            return False
        self.taken_by = refusal
        return True

    def check(self) -> None:
        """Raise InstanceHeldError if another session has taken the lease over."""
        if self.taken_by is not None:
            raise InstanceHeldError(
                f"{self._holder.instance} was taken over by another agent while this one could not renew its "
                f"lease: {self.taken_by}; it has stopped and returned its requests"
            )

    async def _tried(self, status: InstanceStatus, replaces: SessionId | None) -> InstanceHeld | None:
        """Try to get the lease until the store answers."""
        while True:
            try:
                return await self._beat(status, replaces)
            except Exception as error:
                self._faults.note(log, error, "%s: its lease cannot be acquired", self._holder.instance)
                await asyncio.sleep(RETRY_S)

    async def _beat(self, status: InstanceStatus, replaces: SessionId | None) -> InstanceHeld | None:
        sent_s = asyncio.get_running_loop().time()
        status = replace(status, process=self._process)
        refusal = await self._store.heartbeat(status, HEARTBEAT_TTL_S, replaces)
        if refusal is None:
            self._valid_until_s = sent_s + HEARTBEAT_TTL_S
        return refusal

    def _say(self, step: Claim, refusal: InstanceHeld) -> None:
        instance, process = self._holder.instance, refusal.process
        seen = process is not None and self._process is not None and self._process.sees(process)
        if step is Claim.TAKE_OVER:
            log.info("%s: takes over from its former agent, which has ended (%s)", instance, refusal)
        elif step is Claim.GIVE_UP:
            log.error("%s", self._text(refusal))
        elif not seen:
            # One that runs here lives: it is named when this agent gives up.
            log.warning(
                "%s: waits %.1f s for the lease of %s to lapse", instance, refusal.lapses_in_s, refusal
            )

    async def _report(self, refusal: InstanceHeld) -> None:
        """Let operators know of two agents for one instance: the log of this one may be far away."""
        me = "one" if self._process is None else f"process {self._process.pid} on {self._process.host}"
        why = f"a second agent ({me}) was refused: {refusal} has the instance"
        try:
            await self._store.report_refused_agent(self._holder.instance, why, REFUSED_TTL_S)
        except Exception as error:
            self._faults.note(log, error, "%s: that it is refused cannot be reported", self._holder.instance)

    def _text(self, refusal: InstanceHeld) -> str:
        return (
            f"{self._holder.instance} has an agent already: {refusal}; stop that one first, or give this one "
            "another instance id"
        )
