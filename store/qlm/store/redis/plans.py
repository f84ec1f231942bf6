"""Operations of controllers in Redis: leadership, plans, what they publish, and repairs."""

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis

from qlm.domain.group import RequestClass
from qlm.domain.ids import ControllerId, RequestId
from qlm.domain.leadership import Leadership, Term
from qlm.domain.outcome import Outcome
from qlm.domain.plan_change import PlanChange
from qlm.domain.ports.published import PublishedKind
from qlm.store.core.leadership import not_leading
from qlm.store.core.leases import HOLDER_LOST
from qlm.store.core.limits import LIFETIMES_S
from qlm.store.core.plans import check_changes
from qlm.store.redis import codec, plan_codec
from qlm.store.redis.errors import readable
from qlm.store.redis.pipeline import Argument
from qlm.store.redis.scripts import Scripts, padded

END_CHUNK: Final = 64
"""Requests ended per script run: a run blocks every other client of Redis."""
WAITING_PAGE: Final = 5000
"""Ids of waiting requests per script run, for the same reason."""

PRUNES_MAX: Final = 50
"""Further script runs of one `expire` that drop ended requests; the next one goes on."""


class RedisPlans:
    """Part of `RedisStore` that controllers write."""

    def __init__(self, client: Redis, scripts: Scripts, *, prefix: str, address: str) -> None:
        self._client = client
        self._scripts = scripts
        self._prefix = prefix
        self._address = address

    async def acquire_leadership(self, name: ControllerId, ttl_s: float) -> Leadership:
        reply = await self._scripts.run("acquire_leadership", name, max(1, round(ttl_s * 1000)))
        with readable():
            return codec.read_leadership(reply)

    async def leader(self) -> Leadership | None:
        reply = await self._scripts.run("leader")
        with readable():
            return codec.read_leadership(reply) if reply else None

    async def resign(self, term: Term) -> bool:
        return bool(await self._scripts.run("resign", term.incarnation, term.n))

    async def indexed(self) -> bool:
        return await self._read("indexed") is not None

    async def mark_indexed(self, term: Term) -> None:
        await self._fenced("mark_indexed", term=term)

    async def apply(self, changes: Sequence[PlanChange], term: Term | None = None) -> None:
        check_changes(changes)
        if changes or term is not None:
            await self._fenced("apply", plan_codec.changes_argument(changes), term=term)

    async def publish(self, kind: PublishedKind, data: bytes, term: Term | None = None) -> None:
        await self._fenced("set_expiring", kind, data, LIFETIMES_S[kind], term=term)

    async def published(self, kind: PublishedKind) -> bytes | None:
        return await self._read(kind)

    # repairs

    async def expire(self, now_ns: int, limit: int = 1000) -> Sequence[RequestId]:
        until = padded(now_ns + 1)
        ids, goes_on = await self._scripts.run("expire", until, limit, now_ns=now_ns)
        for _ in range(PRUNES_MAX):
            if not goes_on:
                break
            _, goes_on = await self._scripts.run("expire", until, 0, now_ns=now_ns)
        return [RequestId(id.decode()) for id in ids]

    async def waiting(self, cls: RequestClass) -> Sequence[RequestId]:
        found: list[RequestId] = []
        while page := await self._scripts.run("waiting", codec.class_key(cls), len(found), WAITING_PAGE):
            found += [RequestId(id.decode()) for id in page]
        return found

    async def end_waiting(
        self, ids: Sequence[RequestId], outcome: Outcome, detail: str
    ) -> Sequence[RequestId]:
        calls = [(outcome, detail, *ids[at : at + END_CHUNK]) for at in range(0, len(ids), END_CHUNK)]
        answers = await self._scripts.run_each("end_waiting", calls)
        return [RequestId(id.decode()) for ended in answers for id in ended]

    async def expire_leases(self, term: Term | None = None) -> Sequence[RequestId]:
        ids = await self._fenced("expire_leases", HOLDER_LOST, term=term)
        return [RequestId(id.decode()) for id in ids]

    # steps

    async def _read(self, what: str) -> bytes | None:
        value = await self._scripts.run("read", what)
        return None if value is None else bytes(value)

    async def _fenced(self, name: str, *arguments: Argument, term: Term | None) -> Any:
        """Run a script that takes a term first; it returns nothing if the term is not current."""
        fence = ("", "") if term is None else (term.incarnation, term.n)
        answer = await self._scripts.run(name, *fence, *arguments)
        if answer is None and term is not None:
            raise not_leading(term)
        return answer
