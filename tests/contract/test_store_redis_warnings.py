"""What the store in Redis warns of: settings and memory of the server."""

from collections.abc import Callable

import pytest

from contract.redis_stores import SystemClock, opened_client, opened_store
from contract.suites.store.values import enqueued, metadata
from qlm.store.core.limits import StoreLimits
from qlm.store.redis.store import RedisStore
from support.redis import RedisServer


@pytest.mark.parametrize(
    ("policy", "memory_max", "reported"),
    [("volatile-lru", "256mb", True), ("allkeys-lfu", "256mb", True), ("volatile-lru", "0", False)],
)
async def test_a_redis_that_drops_keys_is_reported(
    start_redis: Callable[..., RedisServer], policy: str, memory_max: str, reported: bool
) -> None:
    server = start_redis()
    async with opened_client(server) as client, opened_store(server) as store:
        assert await store.warnings() == ()
        await client.config_set("maxmemory-policy", policy)
        await client.config_set("maxmemory", memory_max)
        warnings = await store.warnings()
        assert len(warnings) == reported
        if reported:
            assert f"maxmemory-policy is {policy}; expected noeviction" in warnings[0]


async def test_a_redis_that_is_nearly_full_is_reported_while_it_can_still_write(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    limits = StoreLimits(result_ttl_s=7200)
    async with opened_client(server) as client, opened_store(server, limits=limits) as store:
        await enqueued(store, 1, 2)
        await store.cancel(metadata(1).id)
        used = (await client.info("memory"))["used_memory"]
        await client.config_set("maxmemory", 2 * used)
        assert await store.warnings() == ()
        await client.config_set("maxmemory", round(used * 1.08))
        (warning,) = await store.warnings()
        assert "when it is full it refuses all writes" in warning
        assert "1 answers of ended requests are kept, the oldest for another 2.0 h" in warning
        await client.config_set("maxmemory", 1)  # full
        (warning,) = await store.warnings()
        assert await store.setting_warnings() == ()


async def test_a_redis_that_does_not_tell_its_settings_is_believed(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    async with opened_client(server) as client:
        await client.acl_setuser(
            "qlm",
            enabled=True,
            passwords=["+secret"],
            keys=["*"],
            channels=["*"],
            categories=["+@all"],
            commands=["-info"],
        )
    store = RedisStore(server.url.replace("//", "//qlm:secret@"), SystemClock())
    try:
        await store.incarnation()
        assert await store.warnings() == ()
    finally:
        await store.close()
