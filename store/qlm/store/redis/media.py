"""Media of requests in Redis: strings `media:<id>` that expire. The end of a request deletes its own."""

from typing import Any

from redis.asyncio import Redis

from qlm.domain.ids import RequestId
from qlm.domain.ports.media import MEDIA_KEPT_S
from qlm.store.redis.errors import translated_errors


class RedisMedia:
    """Part of `RedisStore` with the media."""

    _client: Redis
    _prefix: str
    _address: str

    async def put_media(self, id: RequestId, data: bytes) -> bool:
        with translated_errors(self._address):
            if await self._client.set(self._key(id), data, nx=True, ex=MEDIA_KEPT_S):
                return True
            return bool(await self._client.get(self._key(id)) == data)

    async def media(self, id: RequestId) -> bytes | None:
        with translated_errors(self._address):
            found: Any = await self._client.get(self._key(id))  # redis-py does not know that nothing decodes
        return None if found is None else bytes(found)

    def _key(self, id: RequestId) -> str:
        return f"{self._prefix}media:{id}"
