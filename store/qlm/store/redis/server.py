"""The Redis server: what operators must know of it, and leaving one that is no primary."""

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError, ResponseError

from qlm.store.redis.errors import translated_errors

_SAFE_POLICY: Final = "noeviction"


class PrimaryClient(Redis):
    """Client that leaves a server which is no primary any more, as the connection of the scripts does."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Carry out one command; a write that was refused is not repeated."""
        try:
            # redis-py has no types for the method that all its commands go through.
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except ReadOnlyError:
            # A connection to it works, and would be used for ever.
            await self.connection_pool.disconnect(inuse_connections=False)
            raise


async def eviction_warnings(client: Redis, address: str) -> Sequence[str]:
    """Return a sentence if Redis drops keys when its memory is full; none if it does not, or does not say.

    Raises:
        StoreUnavailableError: Redis cannot be reached.
    """
    with translated_errors(address):
        try:
            memory = await client.info("memory")
        except ResponseError:  # not permitted to this user
            return ()
    policy, memory_max_bytes = memory.get("maxmemory_policy"), memory.get("maxmemory", 0)
    if policy in (None, _SAFE_POLICY) or not memory_max_bytes:
        return ()
    return (
        f"Redis at {address} drops keys when it has {memory_max_bytes} bytes: maxmemory-policy is {policy}; "
        f"expected {_SAFE_POLICY}, since requests and their output would be lost",
    )


def aside_warnings(count: bytes | None, prefix: str, address: str) -> Sequence[str]:
    """Return a sentence if keys were set aside within a day, since another program wrote over them."""
    if count is None:
        return ()
    return (
        f"Redis at {address} had {count.decode()} keys that QLM cannot read, which count as lost; "
        f"they are kept for a day as {prefix}aside:*. Does another program write keys with this prefix?",
    )
