"""The Redis server: warnings of it for operators, and a client that leaves one that is no primary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError, ResponseError

from qlm.domain.ports.clock import Clock
from qlm.store.redis.errors import readable, translated_errors
from qlm.store.redis.scripts import Scripts

NEARLY_FULL: Final = 0.9
"""Share of its `maxmemory` from which on a warning says that Redis is about to refuse writes."""

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


class RedisWarnings:
    """Part of `RedisStore` with the warnings."""

    _client: Redis
    _clock: Clock
    _scripts: Scripts
    _prefix: str
    _address: str

    async def setting_warnings(self) -> Sequence[str]:
        """Return those of the warnings that are about settings of the server."""
        return eviction_warnings(await memory_of(self._client, self._address), self._address)

    async def warnings(self) -> Sequence[str]:
        memory = await memory_of(self._client, self._address)
        aside = await self._scripts.run("read", "aside")
        return (
            *eviction_warnings(memory, self._address),
            *(await self._full_warnings(memory) if memory.nearly_full else ()),
            *aside_warnings(aside, self._prefix, self._address),
        )

    async def _full_warnings(self, memory: "Memory") -> Sequence[str]:
        kept, ended_at = await self._scripts.run("kept")
        with readable():
            oldest_s = (self._clock.now_ns() - int(ended_at)) / 1e9 if ended_at else None
        return full_warnings(memory, kept, oldest_s, self._scripts.kept_s, self._address)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of Redis, in bytes.

    Attributes:
        used: What it uses.
        most: Its `maxmemory`; 0 for no limit.
        policy: What it does then; None if it does not say.
    """

    used: int
    most: int
    policy: str | None

    @property
    def nearly_full(self) -> bool:
        """True if it is about to refuse writes."""
        return self.most > 0 and self.policy == _SAFE_POLICY and self.used >= NEARLY_FULL * self.most


async def memory_of(client: Redis, address: str) -> Memory:
    """Ask Redis for its memory.

    Raises:
        StoreUnavailableError: Redis cannot be reached.
    """
    with translated_errors(address):
        try:
            memory = await client.info("memory")
        except ResponseError:  # not permitted to this user
            return Memory(0, 0, None)
    return Memory(memory.get("used_memory", 0), memory.get("maxmemory", 0), memory.get("maxmemory_policy"))


def eviction_warnings(memory: Memory, address: str) -> Sequence[str]:
    """Return a sentence if Redis drops keys when its memory is full; none if it does not, or does not say."""
    if memory.policy in (None, _SAFE_POLICY) or not memory.most:
        return ()
    return (
        f"Redis at {address} drops keys when it has {memory.most} bytes: "
        f"maxmemory-policy is {memory.policy}; expected {_SAFE_POLICY}, "
        "since requests and their output would be lost",
    )


def full_warnings(
    memory: Memory, kept: int, oldest_s: float | None, kept_s: float, address: str
) -> Sequence[str]:
    """Return a sentence if the memory of Redis is nearly used up.

    Args:
        memory: Its memory.
        kept: Ended requests that are kept for their answers.
        oldest_s: Time since the oldest of them ended; None without one.
        kept_s: Time for which they are kept.
        address: Where Redis is.
    """
    if not memory.nearly_full:
        return ()
    goes = "" if oldest_s is None else f", the oldest for another {max(0.0, kept_s - oldest_s) / 3600:.1f} h"
    return (
        f"Redis at {address} uses {memory.used / memory.most:.0%} of its maxmemory of {memory.most} bytes; "
        "when it is full it refuses all writes, and QLM stands still until there is room. "
        f"{kept} answers of ended requests are kept{goes}. "
        "Give it more with CONFIG SET maxmemory, or keep less (results.kept_max, results.kept_s)",
    )


def aside_warnings(count: bytes | None, prefix: str, address: str) -> Sequence[str]:
    """Return a sentence if keys were set aside within a day, since another program wrote over them."""
    if count is None:
        return ()
    return (
        f"Redis at {address} had {count.decode()} keys that QLM cannot read, which count as lost; "
        f"they are kept for a day as {prefix}aside:*. Does another program write keys with this prefix?",
    )
