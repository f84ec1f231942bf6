"""Leading or standing by: of several controllers one plans, and another takes over when it dies."""

import asyncio
import logging
from typing import Final

from qlm.domain.errors import NotLeadingError, StoreUnavailableError
from qlm.domain.ids import ControllerId
from qlm.domain.leadership import Leadership, Term
from qlm.domain.ports.store import Store

log = logging.getLogger("qlm.controller")

RENEWALS: Final = 4
"""Times that the lead is renewed while it lasts: it outlives three that fail or come late."""


class Leading:
    """The lead as one controller has it: asked for, renewed, lost, given back.

    What this object believes may be out of date at any moment, after a pause for instance. Only the
    store, which is asked to change something under a term, decides.
    """

    def __init__(self, store: Store, name: ControllerId, ttl_s: float) -> None:
        """Stand by.

        Args:
            store: Where the controllers meet.
            name: Of this controller, different from all others.
            ttl_s: The lead is lost after so long without a renewal, seconds.
        """
        self._store = store
        self._name = name
        self._ttl_s = ttl_s
        self._term: Term | None = None
        self._told: Leadership | None = None

    @property
    def leads(self) -> bool:
        """Whether this controller led when it last asked."""
        return self._term is not None

    async def term(self) -> Term:
        """Return the term to plan under; while another one leads, ask for the lead with each call.

        Raises:
            NotLeadingError: Another one leads.
            StoreUnavailableError: Try again later.
        """
        if self._term is None:
            await self._ask()
        if self._term is None:
            raise NotLeadingError("another controller leads")
        return self._term

    async def keep(self) -> None:
        """Renew the lead whenever this controller has it; works until cancelled."""
        while True:
            await asyncio.sleep(self._ttl_s / RENEWALS)
            if self._term is None:
                continue
            try:
                await self._ask()
            except StoreUnavailableError as error:
                log.debug("the lead is not renewed: %s", error)

    def lost(self) -> bool:
        """Note that the store refused the term; False if this controller knew that it stands by."""
        if self._term is None:
            return False
        self._term = None
        log.warning("the lead was lost: what was just planned is dropped")
        return True

    async def give_back(self) -> None:
        """Let another one lead at once; if the store is away, when the lead lapses."""
        term, self._term = self._term, None
        if term is None:
            return
        try:
            await self._store.resign(term)
        except StoreUnavailableError as error:
            log.warning("the lead lapses after %g s: %s", self._ttl_s, error)

    async def _ask(self) -> None:
        leadership = await self._store.lead(self._name, self._ttl_s)
        mine = leadership.leader == self._name
        if self._term is not None and not mine:
            self.lost()
        self._term = leadership.term if mine else None
        if leadership != self._told:
            self._told = leadership
            who = f"{self._name} (this one)" if mine else f"{leadership.leader}, and this one stands by"
            log.info("the controller that plans is %s", who)
