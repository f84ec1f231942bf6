"""API keys in Redis: the hash `api_keys`, by id."""

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from redis.asyncio import Redis

from qlm.domain.errors import StoreDataError
from qlm.domain.formats.api_keys import by_age, decode_api_key, encode_api_key
from qlm.domain.ports.api_keys import ApiKey
from qlm.domain.shown import shown
from qlm.store.redis.errors import readable, translated_errors
from qlm.store.redis.scripts import Scripts

log = logging.getLogger("qlm.store")

_HASH: Final = "api_keys"


class RedisApiKeys:
    """Part of `RedisStore` with the API keys."""

    _client: Redis
    _scripts: Scripts
    _prefix: str
    _address: str
    _damaged: Set[str] = frozenset()

    async def add_api_key(self, key: ApiKey) -> None:
        await self._scripts.run("add_api_key", key.id, encode_api_key(key))

    async def api_keys(self) -> Sequence[ApiKey]:
        stored: Mapping[bytes, bytes] = await self._on_hash("hgetall")
        found, damaged = [], {}
        for name, data in stored.items():
            try:
                with readable():
                    found.append(decode_api_key(data))
            except StoreDataError as error:
                damaged[shown(name.decode(errors="replace"))] = error
        self._log_damaged(damaged)
        return sorted(found, key=by_age)

    def _log_damaged(self, damaged: Mapping[str, StoreDataError]) -> None:
        """Log keys that are good for nothing, each once: keys are read every few seconds."""
        for id in damaged.keys() - self._damaged:
            log.warning("the API key %s is not used: %s", id, damaged[id])
        self._damaged = damaged.keys()

    async def remove_api_key(self, id: str) -> bool:
        return bool(await self._on_hash("hdel", id))

    async def _on_hash(self, command: str, *arguments: str | bytes) -> Any:
        with translated_errors(self._address):
            return await getattr(self._client, command)(f"{self._prefix}{_HASH}", *arguments)
