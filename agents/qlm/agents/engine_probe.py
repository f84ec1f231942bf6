"""Clients of an engine under test: what the checks of `engine_contract` are written with."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from qlm.agents.engine_vllm import VllmEngine
from qlm.domain.ids import TokenIds
from qlm.domain.ports.engine import EngineCall, EngineChunk, EngineLoad
from qlm.domain.sampling import Sampling

_PATIENCE_S: Final = 20.0
_POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The engine under test.

    Attributes:
        base_url: Where it listens.
        model: The name it serves under.
        seqs_max: Requests in its batch at most.
        context_tokens: Prompt plus output at most; 1000 or more.
        ordinary_ids: Token ids that mean nothing special.
    """

    base_url: str
    model: str
    seqs_max: int
    context_tokens: int
    ordinary_ids: range

    def call(self, name: str, *, prompt_tokens: int = 40, tokens: int = 30) -> EngineCall:
        """Ask for a greedy answer of exactly `tokens` tokens; prompts differ by name from the first id."""
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
        """Ask for an answer that takes all the context."""
        return self.call(name, tokens=self.context_tokens - 40)


@contextlib.asynccontextmanager
async def client(facts: EngineFacts) -> AsyncIterator[VllmEngine]:
    """Open a client of the engine under test."""
    engine = VllmEngine(facts.base_url, facts.model, seqs_max=facts.seqs_max)
    try:
        yield engine
    finally:
        await engine.close()


@dataclass(slots=True)
class Answer:
    """What came of one call."""

    token_ids: TokenIds = ()
    finish: str | None = None
    cached_tokens: int | None = None

    def take(self, chunk: EngineChunk) -> None:
        """Add a chunk; nothing may follow the last one."""
        assert self.finish is None, f"a chunk came after the end: {chunk}"
        self.token_ids += chunk.token_ids
        self.finish, self.cached_tokens = chunk.finish, chunk.cached_tokens


async def ask(engine: VllmEngine, call: EngineCall) -> Answer:
    """Read a whole answer."""
    answer = Answer()
    async with asyncio.timeout(_PATIENCE_S):
        async for chunk in engine.generate(call):
            answer.take(chunk)
    return answer


class Running:
    """A call being read in the background."""

    def __init__(self, engine: VllmEngine, call: EngineCall) -> None:
        self.answer = Answer()
        self._more = asyncio.Condition()
        self.task = asyncio.create_task(self._read(engine, call))

    async def reached(self, tokens: int) -> None:
        """Wait until so many tokens have come."""
        async with asyncio.timeout(_PATIENCE_S), self._more:
            await self._more.wait_for(lambda: self.task.done() or len(self.answer.token_ids) >= tokens)

    async def end(self) -> Answer:
        """Wait for the end."""
        async with asyncio.timeout(_PATIENCE_S):
            await self.task
        return self.answer

    async def _read(self, engine: VllmEngine, call: EngineCall) -> None:
        async for chunk in engine.generate(call):
            async with self._more:
                self.answer.take(chunk)
                self._more.notify_all()


async def until_load(
    engine: VllmEngine, facts: EngineFacts, wanted: Callable[[EngineLoad], bool]
) -> EngineLoad:
    """Wait for a load; a short request in between refreshes gauges that went stale with an abort."""
    async with asyncio.timeout(_PATIENCE_S):
        while not wanted(load := await engine.load()):
            await asyncio.sleep(_POLL_S)
            if load.waiting == 0 and load.running < facts.seqs_max:
                await ask(engine, facts.call("refresh", tokens=1))
    return load
