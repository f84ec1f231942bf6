"""The port to an LLM engine."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from qlm.domain.fleet import EngineCapacity
from qlm.domain.ids import TokenIds
from qlm.domain.sampling import Sampling
from qlm.domain.values import value


@value
class EngineCall:
    """One generation asked of an engine.

    Attributes:
        call_id: Unique per attempt; aborts name it.
        prompt_ids: The prompt, with the tokens generated earlier appended on a resume.
        sampling: With max_tokens and min_tokens reduced accordingly.
        traceparent: W3C trace context that the engine's own span continues; empty for none.
    """

    call_id: str
    prompt_ids: TokenIds
    sampling: Sampling
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChunk:
    """Part of an engine's answer.

    Attributes:
        token_ids: New tokens.
        finish: `stop`, `length` or `abort` with the last chunk; None before.
        cached_tokens: Prompt tokens found in the prefix cache, if the engine says so.
    """

    token_ids: TokenIds
    finish: str | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """The engine's own gauges, to reconcile the agent's ledger with.

    Attributes:
        running: Requests in the batch.
        waiting: Requests in the engine's own queue; QLM keeps it empty.
        kv_usage: Share of KV blocks in use, 0 to 1.
        preemptions: Since its start.
    """

    running: int
    waiting: int
    kv_usage: float
    preemptions: int = 0


class Engine(Protocol):
    """An LLM engine that serves one model over vLLM's HTTP API."""

    def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        """Generate; the last chunk has `finish`. A stream that just ends was aborted while waiting.

        Raises:
            EngineUnavailableError: The engine died or cannot be reached.
            EngineRefusedError: It refused this request for good.
        """
        ...

    async def abort(self, call_ids: Sequence[str]) -> None:
        """Ask the engine to stop generations; each stream's own end is the barrier, not this return."""
        ...

    async def capacity(self) -> EngineCapacity:
        """What it can hold."""
        ...

    async def load(self) -> EngineLoad:
        """Its gauges now; they may be stale just after an abort."""
        ...

    async def healthy(self) -> bool:
        """Whether it answers and its core is alive."""
        ...

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator, keeping weights in host memory (level 1) or nothing (level 2)."""
        ...

    async def wake(self) -> None:
        """Undo `sleep`."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
