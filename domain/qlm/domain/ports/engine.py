"""Port to an LLM engine."""

from collections.abc import AsyncIterator, Callable, Sequence
from math import inf
from typing import Protocol, runtime_checkable

from qlm.domain.fleet import EngineCapacity
from qlm.domain.ids import TokenIds
from qlm.domain.sampling import Sampling
from qlm.domain.values import value


@value
class CallObjective:
    """What a batch policy in the engine may know of a request; an engine without one ignores it.

    Attributes:
        arrival_ns: Arrival at QLM, nanoseconds since the epoch.
        ttft_s: Seconds from there until the first token is expected; inf without such an objective.
        tokens_per_s: Pace of its reader after the first token; inf without a reader, 0 if the objective ends
            with the first token.
        deadline_ns: Deadline of the whole answer; None without.
        rank: Order of service between requests, lower first; equal ones by arrival.
        shown: Tokens of earlier generations, at the end of the prompt.
        late_s: Idle time of the reader up to the last of them, seconds.
    """

    arrival_ns: int
    ttft_s: float = inf
    tokens_per_s: float = inf
    deadline_ns: int | None = None
    rank: int = 0
    shown: int = 0
    late_s: float = 0.0


@value
class EngineCall:
    """One generation request to an engine.

    Attributes:
        call_id: Unique per attempt; aborts name it.
        prompt_ids: The prompt, with the tokens generated earlier appended on a resume.
        sampling: With max_tokens and min_tokens reduced accordingly.
        traceparent: W3C trace context that the engine's own span continues; empty for none.
        objective: For batch policies; None if there is nothing to say.
        logprobs: Candidates per token whose log probabilities are wanted; None for none.
        prompt_logprobs: Candidates per token of the prompt, besides the token itself; None for none.
    """

    call_id: str
    prompt_ids: TokenIds
    sampling: Sampling
    traceparent: str = ""
    objective: CallObjective | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None


@value
class EngineChunk:
    """Part of an engine's answer.

    Attributes:
        token_ids: New tokens.
        finish: `stop`, `length` or `abort` with the last chunk; None before.
        cached_tokens: Prompt tokens found in the prefix cache, if the engine reports them.
        logprobs: Log probabilities of the new tokens, packed (`token_logprobs`); empty if none are wanted.
        prompt_logprobs: Those of the whole prompt, in a chunk before the first tokens; empty in others.
    """

    token_ids: TokenIds
    finish: str | None = None
    cached_tokens: int | None = None
    logprobs: bytes = b""
    prompt_logprobs: bytes = b""


class Engine(Protocol):
    """LLM engine that serves one model over vLLM's HTTP API."""

    def generate(self, call: EngineCall) -> AsyncIterator[EngineChunk]:
        """Generate; the last chunk has `finish`. A stream without one was aborted while waiting.

        Raises:
            EngineUnavailableError: The engine died or cannot be reached.
            EngineRefusedError: The engine rejects this request permanently.
        """
        ...

    async def abort(self, call_ids: Sequence[str]) -> None:
        """Ask the engine to stop generations; a stream may yield until it ends by itself."""
        ...

    async def capacity(self) -> EngineCapacity:
        """Return the capacity of its batch and KV cache."""
        ...

    async def healthy(self) -> bool:
        """Return True if the engine answers and its core is alive."""
        ...

    async def sleep(self, level: int = 1) -> None:
        """Free the accelerator, keeping weights in host memory (level 1) or nothing (level 2)."""
        ...

    async def wake(self) -> None:
        """Undo `sleep`."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


@runtime_checkable
class PushEngine(Protocol):
    """Engine that can pass on tokens as it reads them, so that no task has to wake for each."""

    async def push(self, call: EngineCall, take: Callable[[EngineChunk], None]) -> EngineChunk | None:
        """Generate as `Engine.generate` does; return its last chunk, None if it was aborted while waiting.

        Args:
            call: The call.
            take: Receives all chunks but the last.
        """
        ...


@runtime_checkable
class MediaEngine(Protocol):
    """Engine that takes prompts with images, sound and video."""

    async def prepare(self, call: EngineCall, media: bytes) -> None:
        """Read the media (`formats.media`) of a call, which `generate` or `push` follows at once.

        Raises:
            EngineUnavailableError: The engine died or cannot be reached.
            EngineRefusedError: The engine cannot read them.
        """
        ...

    def forget(self, call_id: str) -> None:
        """Drop what `prepare` has kept of a call that is over; it may never have been generated."""
        ...
