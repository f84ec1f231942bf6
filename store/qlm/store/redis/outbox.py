"""Outbox in Redis: `end:<subject>`, by the time at which it is due in `ends`."""

from collections.abc import Sequence
from typing import Any

import orjson

from qlm.domain.ports.clock import Clock
from qlm.domain.ports.outbox import EndEvent, OutboxState
from qlm.store.redis.errors import readable_ones
from qlm.store.redis.scripts import Scripts, padded


class RedisOutbox:
    """Part of `RedisStore` with the outbox."""

    _clock: Clock
    _scripts: Scripts

    async def add_end(self, event: EndEvent) -> None:
        await self._scripts.run("add_end", event.subject, event.ended_as, event.tenant, padded(event.at_ns))

    async def claim_ends(self, limit: int, claim_s: float) -> Sequence[EndEvent]:
        until_ns = self._clock.now_ns() + round(claim_s * 1e9)
        replies = await self._scripts.run("claim_ends", limit, padded(until_ns))
        return readable_ones(_read_event, replies)

    async def settle_end(self, event: EndEvent, again_ns: int | None) -> bool:
        again = "" if again_ns is None else padded(again_ns)
        done = orjson.dumps(event.done)
        claim = (event.subject, padded(event.at_ns), event.attempts)
        changed = (done, again, event.failures, event.ended_as)
        return bool(await self._scripts.run("settle_end", *claim, *changed))

    async def outbox_state(self) -> OutboxState:
        waiting, dropped = await self._scripts.run("outbox_state")
        return OutboxState(waiting, int(dropped or 0))


def _read_event(reply: Any) -> EndEvent:
    subject, ended_as, tenant, at, attempts, done, failures = reply
    return EndEvent(
        subject=subject.decode(),
        ended_as=ended_as.decode(),
        tenant=tenant.decode(),
        at_ns=int(at),
        attempts=int(attempts),
        failures=int(failures or 0),
        done=tuple(orjson.loads(done)),
    )
