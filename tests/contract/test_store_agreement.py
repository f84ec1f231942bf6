"""Comparison of core and Redis: every answer, announcement and snapshot."""

import asyncio
import itertools
from collections import defaultdict
from typing import Any, TypeVar

import pytest
import redis.asyncio
from hypothesis import HealthCheck, given, settings

from qlm.store.core.effects import Effects
from qlm.store.embedded.memory import MemoryStore
from qlm.store.redis import announcements
from qlm.store.redis.store import RedisStore
from support.redis import RedisServer
from support.store_steps import LIMITS, Step, SteppedClock, histories, snapshot

T = TypeVar("T")
Announced = dict[str, list[Any]]
"""Announcements by channel."""

_prefixes = (f"agreement-{n}:" for n in itertools.count())


class _Recording(MemoryStore):
    """A MemoryStore that keeps the effects of its last step."""

    effects = Effects()

    async def _commit(self, step: tuple[T, Effects]) -> T:
        self.effects = step[1]
        return step[0]

    def announced(self) -> Announced:
        by_channel: defaultdict[str, list[Any]] = defaultdict(list)
        for watcher, part in self.effects.outputs:
            by_channel[f"outputs:{watcher}"].append(part)
        for instance, notice in self.effects.notices:
            by_channel[f"notices:{instance}"].append(notice)
        by_channel["wakeups"].extend(self.effects.wakeups)
        self.effects = Effects()
        return {channel: items for channel, items in by_channel.items() if items}


class _Channels:
    """Everything that is published under a prefix."""

    def __init__(self, client: redis.asyncio.Redis, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)

    async def open(self) -> None:
        await self._pubsub.psubscribe(f"{self._prefix}*")
        await self.announced()

    async def close(self) -> None:
        await self._pubsub.aclose()  # type: ignore[no-untyped-call]

    async def announced(self) -> Announced:
        """Return what was published since the last call; a mark published now tells where to stop."""
        await self._client.publish(f"{self._prefix}mark", "")
        by_channel: defaultdict[str, list[Any]] = defaultdict(list)
        while True:
            message = await self._pubsub.get_message(timeout=10.0)
            if message is None:
                continue
            channel = message["channel"].decode().removeprefix(self._prefix)
            if channel == "mark":
                return dict(by_channel)
            by_channel[channel].extend(_read(channel, message["data"]))


def _read(channel: str, text: bytes) -> list[Any]:
    if channel == "wakeups":
        return [text.decode()]
    return (
        announcements.read_slices(text)
        if channel.startswith("outputs:")
        else list(announcements.read_notice(text))
    )


async def _compare(url: str, history: list[Step]) -> None:
    prefix, clock = next(_prefixes), SteppedClock()
    core = _Recording(clock, LIMITS)
    store = RedisStore(url, clock, prefix=prefix, limits=LIMITS)
    client = redis.asyncio.Redis.from_url(url)
    channels = _Channels(client, prefix)
    try:
        await channels.open()
        incarnation = await store.incarnation()
        assert incarnation == await core.incarnation()
        for step in history:
            clock.advance(step.pass_s)
            expected = await step.run(core, incarnation)
            assert await step.run(store, incarnation) == expected, step
            assert await channels.announced() == core.announced(), step
            assert await snapshot(store) == await snapshot(core), step
    finally:
        await channels.close()
        await client.aclose()
        await store.close()


@pytest.mark.timeout(420)  # a failure takes minutes to be made small
@given(history=histories)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_redis_and_the_core_agree_on_every_step(history: list[Step], redis_server: RedisServer) -> None:
    asyncio.run(_compare(redis_server.url, history))
