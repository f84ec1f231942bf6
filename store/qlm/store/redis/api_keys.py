"""API keys in Redis: the hash `api_keys`, by id."""

from collections.abc import Sequence
from typing import Any, Final

from redis.asyncio import Redis

from qlm.domain.formats.api_keys import by_age, decode_api_key, encode_api_key
from qlm.domain.ports.api_keys import ApiKey
from qlm.store.redis.errors import readable_ones, translated_errors

_HASH: Final = "api_keys"


class RedisApiKeys:
    """Part of `RedisStore` with the API keys."""

    _client: Redis
    _prefix: str
    _address: str

    async def add_api_key(self, key: ApiKey) -> None:
        await self._on_hash("hset", key.id, encode_api_key(key))

    async def api_keys(self) -> Sequence[ApiKey]:
        stored = await self._on_hash("hvals")
        return sorted(readable_ones(decode_api_key, stored), key=by_age)

    async def remove_api_key(self, id: str) -> bool:
        return bool(await self._on_hash("hdel", id))

    async def _on_hash(self, command: str, *arguments: str | bytes) -> Any:
        with translated_errors(self._address):
            return await getattr(self._client, command)(f"{self._prefix}{_HASH}", *arguments)
