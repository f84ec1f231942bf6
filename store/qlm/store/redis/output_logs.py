"""Output logs in Redis as gateways use them: read, watch, erase."""

from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.output import OutputSlice
from qlm.domain.request import RequestMetadata
from qlm.store.core.output_log import BY_CLIENT
from qlm.store.redis import codec
from qlm.store.redis.errors import readable
from qlm.store.redis.scripts import Scripts


class RedisOutputLogs:
    """Part of `RedisStore` with the output logs."""

    _scripts: Scripts

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
