"""Leadership of one controller: of several controllers one plans, and another takes over when it dies."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from qlm.domain.errors import NotLeadingError
from qlm.domain.ids import ControllerId
from qlm.domain.leadership import Leadership, Term
from qlm.domain.ports.store import ControllerStore
from qlm.domain.shell.faults import FaultLog

log = logging.getLogger("qlm.controller")

RENEWALS: Final = 4
"""Renewals per lifetime of the leadership: it survives three that fail or come late."""


class LeadershipLoop:
    """Acquires, renews and resigns the leadership for one controller.

    Its state may be outdated at any time, after a pause for instance. Only the store decides: it rejects
    changes under an old term.
    """

    def __init__(
        self,
        store: ControllerStore,
        name: ControllerId,
        ttl_s: float,
        faults: FaultLog,
        on_lapse: Callable[[], None] = lambda: None,
    ) -> None:
        """Start as a standby.

        Args:
            store: The store that the controllers share.
            name: Name of this controller, unique among all.
            ttl_s: Lifetime of the leadership without a renewal, seconds.
            faults: Failures of the process.
            on_lapse: Called when the leadership cannot be renewed for its lifetime: another may lead.
        """
        self._on_lapse = on_lapse
        self._asked_s = 0.0
        self._faults = faults
        self._store = store
        self._name = name
        self._ttl_s = ttl_s
        self._term: Term | None = None
        self._logged: Leadership | None = None

    @property
    def is_leader(self) -> bool:
        """True if this controller led at its last request to the store."""
        return self._term is not None

    async def term(self) -> Term:
        """Return the term to plan under; ask for the leadership while another controller leads.

        Raises:
            NotLeadingError: Another controller leads.
            StoreUnavailableError: Try again later.
        """
        if self._term is None:
            await self._ask()
        if self._term is None:
            raise NotLeadingError("another controller leads")
        return self._term

    async def renew(self) -> None:
        """Renew the leadership while this controller has it; runs until cancelled."""
        while True:
            await asyncio.sleep(self._ttl_s / RENEWALS)
            if self._term is None:
                continue
            try:
                await self._ask()
            except Exception as error:
                self._faults.note(log, error, "leadership not renewed")
                if asyncio.get_running_loop().time() - self._asked_s > self._ttl_s:
                    self._on_lapse()

    def lost(self) -> bool:
        """Note that the store rejected the term; return False if this controller was a standby already."""
        if self._term is None:
            return False
        self._term = None
        log.warning("leadership lost: the latest plan is dropped")
        return True

    async def resign(self) -> None:
        """Give the leadership to another controller at once; if the store is down, it lapses."""
        term, self._term = self._term, None
        if term is None:
            return
        try:
            await self._store.resign(term)
        except Exception as error:
            self._faults.note(log, error, "not resigned, leadership lapses after %g s", self._ttl_s)

    async def _ask(self) -> None:
        asked_s = asyncio.get_running_loop().time()
        leadership = await self._store.acquire_leadership(self._name, self._ttl_s)
        mine = leadership.leader == self._name
        self._asked_s = asked_s
        if self._term is not None and not mine:
            self.lost()
        self._term = leadership.term if mine else None
        if leadership != self._logged:
            self._logged = leadership
            who = f"{self._name} (this one)" if mine else f"{leadership.leader}; this one is a standby"
            log.info("the controller that plans is %s", who)
