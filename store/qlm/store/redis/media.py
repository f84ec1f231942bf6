"""Media of requests in Redis: strings `media:<id>` that expire. The end of a request deletes its own."""

import asyncio
from typing import Any, Final

from redis.asyncio import Redis

from qlm.domain.ids import RequestId
from qlm.domain.ports.media import MEDIA_KEPT_S
from qlm.store.redis.errors import translated_errors

PUTS_MAX: Final = 2
"""Media that are sent at a time."""


class RedisMedia:
    """Part of `RedisStore` with the media."""

    _puts: asyncio.Semaphore
    _client: Redis
    _prefix: str
    _address: str

    async def put_media(self, id: RequestId, data: bytes) -> bool:
        async with self._puts:  # the connections are few, and others wait for them
            with translated_errors(self._address):
                if await self._client.set(self._key(id), data, nx=True, ex=MEDIA_KEPT_S):
                    return True
                return bool(await self._client.get(self._key(id)) == data)

    async def media(self, id: RequestId) -> bytes | None:
        with translated_errors(self._address):
            found: Any = await self._client.get(self._key(id))  # redis-py does not know that nothing decodes
        return None if found is None else bytes(found)

    async def drop_media(self, id: RequestId) -> None:
        with translated_errors(self._address):
            await self._client.delete(self._key(id))

    def _key(self, id: RequestId) -> str:
        return f"{self._prefix}media:{id}"
