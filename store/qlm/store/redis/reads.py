"""Requests in Redis as operators list them, and their output logs as gateways use them."""

from collections.abc import Sequence
from typing import Any, Final

from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.output import OutputSlice
from qlm.domain.request import RequestMetadata, RequestRecord
from qlm.domain.view import RequestFilter
from qlm.store.core.output_log import BY_CLIENT
from qlm.store.redis import codec
from qlm.store.redis.errors import readable, readable_ones
from qlm.store.redis.scripts import Scripts

LOOKS_MAX: Final = 500
"""Requests looked at per script run for a list: a run blocks every other client of Redis."""


class RedisReads:
    """Part of `RedisStore` with lists and output logs."""

    _scripts: Scripts

    async def records(self, where: RequestFilter) -> Sequence[RequestRecord]:
        found: list[Any] = []
        after: bytes | str = ""
        while len(found) < where.limit:
            wanted = (where.state or "", where.model or "", where.limit - len(found))
            page, after = await self._scripts.run("records", *wanted, after, LOOKS_MAX)
            found += page
            if not after:
                break
        return readable_ones(codec.read_record, found)

    async def read_output(self, id: RequestId, offset: int) -> OutputSlice | None:
        reply = await self._scripts.run("read_output", id, offset)
        if not reply:
            return None
        with readable():
            return codec.read_slice(id, reply)

    async def watch(self, metadata: RequestMetadata, watcher: GatewayId) -> None:
        await self._scripts.run("watch", metadata.id, watcher, 1, metadata.fingerprint)

    async def unwatch(self, id: RequestId, watcher: GatewayId) -> int:
        return int(await self._scripts.run("watch", id, watcher, 0, ""))

    async def erase(self, metadata: RequestMetadata) -> bool:
        arguments = codec.metadata_arguments(metadata.without_texts())
        return bool(await self._scripts.run("erase", *arguments, BY_CLIENT))
