"""What an emulated engine is to its driver: requests in, iterations with a duration and tokens out."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from qlm.domain.fleet import EngineCapacity
from qlm.domain.ids import TokenIds
from qlm.domain.ports.engine import EngineCall

Chunk = tuple[str, TokenIds]
"""A request's call id, and its new tokens in mid-answer."""


class Emission(NamedTuple):
    """What one or more iterations give one request.

    Attributes:
        call_id: Of the request.
        token_ids: Its new tokens.
        finish: `stop` or `length` with the last ones.
        stop_reason: The stop token id of the caller's that ended it.
        cached_tokens: Prompt tokens found in the prefix cache.
    """

    call_id: str
    token_ids: tuple[int, ...]
    finish: str | None
    stop_reason: int | None
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """One iteration: how long it takes, and what it gives when it is over.

    Attributes:
        duration_ns: Always positive.
        emissions: In the order of the batch.
        idle: It computes nothing, but waits for KV blocks from host memory; what is added meanwhile need
            not wait for its end.
    """

    duration_ns: int
    emissions: tuple[Emission, ...]
    idle: bool = False


@dataclass(slots=True)
class EngineCounters:
    """Totals since the start, as vLLM counts them.

    Attributes:
        prompt_tokens: Of the requests admitted.
        generation_tokens: Generated.
        prefix_queries: Prompt tokens looked for in the prefix cache.
        prefix_hits: Prompt tokens found there.
        preemptions: Of running requests, for want of blocks or by sleeping.
        offloaded_tokens: Tokens whose KV was copied to host memory.
        reloaded_tokens: Tokens whose KV was loaded from there.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    offloaded_tokens: int = 0
    reloaded_tokens: int = 0


class EngineModel(Protocol):
    """An engine without a clock: its driver says what time it is and when an iteration begins.

    A driver calls `step`, lets the duration pass, delivers the emissions, and calls `step` again.
    What is added or aborted in between takes effect with the next step.
    """

    counters: EngineCounters

    @property
    def capacity(self) -> EngineCapacity:
        """What it can hold."""
        ...

    @property
    def running(self) -> int:
        """Requests in the batch."""
        ...

    @property
    def waiting(self) -> int:
        """Requests not yet in the batch."""
        ...

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        ...

    def add(self, call: EngineCall, now_ns: int) -> None:
        """Take a request.

        Raises:
            InvalidValueError: The prompt leaves no room for a token, or the id is taken.
        """
        ...

    def abort(self, call_id: str) -> bool:
        """Forget a request; False if it is not known or has ended."""
        ...

    def step(self, now_ns: int) -> StepResult | None:
        """Compute one iteration that begins now; None if there is nothing to do."""
        ...

    def sleep(self) -> None:
        """Drop the KV cache, prefixes included; requests wait, to be recomputed after `wake`."""
        ...

    def wake(self) -> None:
        """Undo `sleep`."""
        ...
