"""The part of the store in Redis that controllers write: the lead, plans, and what is kept of them."""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from qlm.domain.ids import ControllerId
from qlm.domain.leadership import Leadership, Term
from qlm.domain.plan_change import PlanChange
from qlm.store import redis_codec as codec
from qlm.store.leading import not_leading
from qlm.store.limits import KEPT_PLAN_S, KEPT_SIGNAL_S
from qlm.store.plans import check_changes
from qlm.store.redis_scripts import Argument, Scripts, speaking_of


class RedisPlans:
    """The planning part of `RedisStore`; each method's contract is that of the port."""

    def __init__(self, client: Redis, scripts: Scripts, *, prefix: str, address: str) -> None:
        self._client = client
        self._scripts = scripts
        self._prefix = prefix
        self._address = address

    async def lead(self, name: ControllerId, ttl_s: float) -> Leadership:
        """Take the lead if nobody has it, or renew it; tell who leads."""
        return codec.read_leadership(await self._scripts.run("lead", name, max(1, round(ttl_s * 1000))))

    async def leader(self) -> Leadership | None:
        """Tell who leads; None if nobody does."""
        reply = await self._scripts.run("leader")
        return codec.read_leadership(reply) if reply else None

    async def resign(self, term: Term) -> bool:
        """Give the lead back and wake the controllers that stand by; False if the term is not current."""
        return bool(await self._scripts.run("resign", term.incarnation, term.n))

    async def indexed(self) -> bool:
        """Tell whether the global queue was read into this store since it was empty."""
        return await self._kept("indexed") is not None

    async def mark_indexed(self, term: Term) -> None:
        """Note that the global queue was read: `indexed` holds until the store is emptied."""
        await self._fenced("mark_indexed", term=term)

    async def apply(self, changes: Sequence[PlanChange], term: Term | None = None) -> None:
        """Apply plan changes in order, and notify each instance whose queue changed."""
        check_changes(changes)
        if changes or term is not None:
            await self._fenced("apply", codec.changes_argument(changes), term=term)

    async def keep_plan(self, data: bytes, term: Term | None = None) -> None:
        """Keep this for `KEPT_PLAN_S`, instead of what was kept before."""
        await self._fenced("keep", "plan", data, KEPT_PLAN_S, term=term)

    async def kept_plan(self) -> bytes | None:
        """Return what was kept last; None if nothing was, or if it has expired."""
        return await self._kept("plan")

    async def keep_signal(self, data: bytes, term: Term | None = None) -> None:
        """Keep this for `KEPT_SIGNAL_S`, instead of what was kept before."""
        await self._fenced("keep", "signal", data, KEPT_SIGNAL_S, term=term)

    async def kept_signal(self) -> bytes | None:
        """Return what was kept last; None if nothing was, or if it has expired."""
        return await self._kept("signal")

    async def _kept(self, what: str) -> bytes | None:
        with speaking_of(self._address):
            kept: Any = await self._client.get(f"{self._prefix}{what}")
        return None if kept is None else bytes(kept)

    async def _fenced(self, name: str, *arguments: Argument, term: Term | None) -> Any:
        """Run a script that begins with a term; it answers nothing if nobody leads under it."""
        fence = ("", "") if term is None else (term.incarnation, term.n)
        answer = await self._scripts.run(name, *fence, *arguments)
        if answer is None and term is not None:
            raise not_leading(term)
        return answer
