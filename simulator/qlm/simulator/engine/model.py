"""Interface of emulated engines: requests in; iterations with a duration and tokens out."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from qlm.domain.fleet import EngineCapacity
from qlm.domain.ids import TokenIds
from qlm.domain.ports.engine import EngineCall

Chunk = tuple[str, TokenIds]
"""Call id of a request, and new tokens that do not end its answer."""


class Emission(NamedTuple):
    """Output of one or more iterations for one request.

    Attributes:
        finish: `stop` or `length` with the last tokens, else None.
        stop_reason: The request's stop id that ended the answer.
        cached_tokens: Prompt tokens found in the prefix cache.
    """

    call_id: str
    token_ids: tuple[int, ...]
    finish: str | None
    stop_reason: int | None
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """One iteration.

    Attributes:
        duration_ns: Duration; always positive.
        emissions: Output at its end, in the order of the batch.
        idle: It only waits for KV blocks from host memory; requests added meanwhile need not wait for its
            end.
    """

    duration_ns: int
    emissions: tuple[Emission, ...]
    idle: bool = False


@dataclass(slots=True)
class EngineCounters:
    """Counters since the start, as in vLLM.

    Attributes:
        prompt_tokens: Prompt tokens of admitted requests.
        generation_tokens: Generated tokens.
        prefix_queries: Prompt tokens looked up in the prefix cache.
        prefix_hits: Prompt tokens found there.
        preemptions: Preemptions of running requests, for lack of blocks, by sleep, or by a batch policy.
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
    """Engine without a clock; its driver passes the time and decides when an iteration starts.

    A driver calls `step`, lets the duration pass, delivers the emissions, and calls `step` again.
    Requests added or aborted in between take effect with the next step.
    """

    counters: EngineCounters

    @property
    def capacity(self) -> EngineCapacity:
        """Limits of the engine."""
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
        """Add a request.

        Raises:
            InvalidValueError: The prompt leaves no room for a token, or the id is taken.
        """
        ...

    def abort(self, call_id: str) -> bool:
        """Remove a request; False if it is unknown or has ended."""
        ...

    def step(self, now_ns: int) -> StepResult | None:
        """Compute one iteration that starts now; None if there is nothing to do."""
        ...

    def sleep(self) -> None:
        """Clear the KV cache with its prefixes; requests wait and are recomputed after `wake`."""
        ...

    def wake(self) -> None:
        """Resume service after `sleep`."""
        ...
