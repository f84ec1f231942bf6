"""Client helpers of the engine contract: read answers, wait for progress and load."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from qlm.agents.engines.vllm.client import VllmEngine
from qlm.domain.ids import TokenIds
from qlm.domain.ports.engine import EngineCall, EngineChunk
from qlm.domain.sampling import Sampling

_PATIENCE_S: Final = 20.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServer:
    """Address and limits of the engine under test.

    Attributes:
        model: The name under which it serves.
        seqs_max: Maximum batch size.
        batched_tokens_max: Maximum number of tokens of one iteration.
        context_tokens: Maximum prompt plus output; 1000 or more.
        ordinary_ids: Token ids without a special meaning.
    """

    base_url: str
    model: str
    seqs_max: int
    batched_tokens_max: int
    context_tokens: int
    ordinary_ids: range

    def call(self, name: str, *, prompt_tokens: int = 40, tokens: int = 30) -> EngineCall:
        """Return a call with a greedy answer of exactly `tokens` tokens; its prompt depends on the name."""
        seed = int.from_bytes(name.encode(), "big")
        ids = tuple(
            self.ordinary_ids[(seed + 7919 * i * (i + 1)) % len(self.ordinary_ids)]
            for i in range(prompt_tokens)
        )
        return EngineCall(
            call_id=name,
            prompt_ids=ids,
            sampling=Sampling(max_tokens=tokens, temperature=0.0, ignore_eos=True),
        )

    def endless(self, name: str) -> EngineCall:
        """Return a call whose answer fills the context."""
        return self.call(name, tokens=self.context_tokens - 40)


@contextlib.asynccontextmanager
async def client(server: EngineServer) -> AsyncIterator[VllmEngine]:
    """Open a client of the engine under test."""
    engine = VllmEngine(server.base_url, server.model, seqs_max=server.seqs_max)
    try:
        yield engine
    finally:
        await engine.close()


@dataclass(slots=True)
class Answer:
    """The answer to one call so far."""

    token_ids: TokenIds = ()
    finish: str | None = None
    cached_tokens: int | None = None

    def add(self, chunk: EngineChunk) -> None:
        """Add a chunk; nothing may follow the last one."""
        assert self.finish is None, f"a chunk came after the end: {chunk}"
        self.token_ids += chunk.token_ids
        self.finish, self.cached_tokens = chunk.finish, chunk.cached_tokens


async def ask(engine: VllmEngine, call: EngineCall) -> Answer:
    """Read a whole answer."""
    answer = Answer()
    async with asyncio.timeout(_PATIENCE_S):
        async for chunk in engine.generate(call):
            answer.add(chunk)
    return answer


class Running:
    """A call whose answer is read in the background."""

    def __init__(self, engine: VllmEngine, call: EngineCall) -> None:
        self.answer = Answer()
        self._more = asyncio.Condition()
        self.task = asyncio.create_task(self._read(engine, call))

    async def reached(self, tokens: int) -> None:
        """Wait until the answer has `tokens` tokens, or has ended."""
        async with asyncio.timeout(_PATIENCE_S), self._more:
            await self._more.wait_for(lambda: self.task.done() or len(self.answer.token_ids) >= tokens)

    async def end(self) -> Answer:
        """Wait for the end of the answer, and return it."""
        async with asyncio.timeout(_PATIENCE_S):
            await self.task
        return self.answer

    async def _read(self, engine: VllmEngine, call: EngineCall) -> None:
        async for chunk in engine.generate(call):
            async with self._more:
                self.answer.add(chunk)
                self._more.notify_all()


@dataclass(frozen=True, slots=True)
class Gauges:
    """What an engine reports of its load.

    Attributes:
        running: Requests in the batch.
        waiting: Requests in the engine's own queue.
        kv_usage: Share of KV blocks in use, 0 to 1.
    """

    running: float
    waiting: float
    kv_usage: float


async def gauges(server: EngineServer) -> Gauges:
    """Read the engine's metrics; they may be stale just after an abort."""
    async with aiohttp.ClientSession() as session, session.get(f"{server.base_url}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    values = {sample.name: sample.value for family in families for sample in family.samples}
    names = "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"
    return Gauges(*(values[f"vllm:{name}"] for name in names))


async def until_load(engine: VllmEngine, server: EngineServer, wanted: Callable[[Gauges], bool]) -> Gauges:
    """Wait until the engine's load is as wanted, and return it."""
    async with asyncio.timeout(_PATIENCE_S):
        while not wanted(load := await gauges(server)):
            await asyncio.sleep(_POLL_S)
            # A short request refreshes gauges that are stale after an abort.
            if load.waiting == 0 and load.running < server.seqs_max:
                await ask(engine, server.call("refresh", tokens=1))
    return load
