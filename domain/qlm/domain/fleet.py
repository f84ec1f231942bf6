"""Models, accelerators and LLM serving instances: what there is to serve with."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.lease import Holder
from qlm.domain.operations import NO_OPERATIONS, OperationStats

MODEL_NAME_CHARACTERS_MAX: Final = 60
"""Model names become part of queue names, which AMQP limits to 255 bytes."""


class EngineState(StrEnum):
    """State of the engine process of one model on one instance."""

    COLD = "cold"
    """No process; weights in storage."""
    STARTING = "starting"
    AWAKE = "awake"
    """Loaded and serving."""
    ASLEEP = "asleep"
    """Process up, weights in host memory (sleep level 1): a warm start away."""
    UNLOADED = "unloaded"
    """Process up, weights discarded (sleep level 2): they are read from storage again."""
    FAILED = "failed"

    @property
    def sleeps(self) -> bool:
        """Whether its process sleeps, with weights or without.

        Plans count both as warm: reading weights again into a live process (4 to 36 s by the shipped
        profiles) is far nearer to a warm start than to a cold one (43 to 105 s) of the same model.
        """
        return self in (EngineState.ASLEEP, EngineState.UNLOADED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model that the cluster serves.

    Attributes:
        id: Its name for clients.
        tokenizer: `byte` for emulated models, else a directory with tokenizer.json and its configs.
        context_tokens: Prompt plus output of one request at most.
    """

    id: ModelId
    tokenizer: str
    context_tokens: int

    def __post_init__(self) -> None:
        if not self.id or len(self.id) > MODEL_NAME_CHARACTERS_MAX:
            expected = f"a name of 1 to {MODEL_NAME_CHARACTERS_MAX} characters"
            raise InvalidValueError("model", self.id, expected)
        if self.context_tokens < 2:
            raise InvalidValueError("context_tokens", self.context_tokens, "at least 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapacity:
    """What one awake engine can hold at once.

    Attributes:
        kv_tokens: Tokens of KV cache (`kv_cache_size_tokens` of vLLM).
        block_tokens: Tokens per KV block.
        seqs_max: Requests in the running batch at most (`--max-num-seqs`).
        context_tokens: Prompt plus output of one request at most (`max_model_len`).
    """

    kv_tokens: int
    block_tokens: int
    seqs_max: int
    context_tokens: int

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "block_tokens", "seqs_max", "context_tokens"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"engine.{name}", getattr(self, name), "a positive number")

    def blocks(self, tokens: int) -> int:
        """KV blocks that `tokens` tokens of one request take."""
        return -(-tokens // self.block_tokens)

    @property
    def kv_blocks(self) -> int:
        """KV blocks in all."""
        return self.kv_tokens // self.block_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWork:
    """What the awake engine has done since it came up: sums that only grow until the model changes.

    Two of them, some time apart, tell how fast the instance really is.

    Attributes:
        busy_s: Time with at least one request running.
        request_s: Running requests integrated over time: `request_s / busy_s` is the mean batch.
        prompt_tokens: Prompt tokens (a resume's earlier output included) of the generations submitted, but
            for those whose KV cache was loaded from host memory.
        output_tokens: Tokens generated.
        ended: Generations that came to their end by themselves.
        withdrawn_tokens: Those of the prompt tokens whose generation was stopped before its first token: an
            engine that computes prompts in the order of their arrival had hardly begun with them.
        repeated_tokens: Those that were computed before, and again after an eviction.
        token_steps: Sum of O (p + O / 2) over the requests that ended, of prompt p and answer O: the tokens
            that one held in the KV cache, integrated over its iterations.
        token_step_squares: Sum of the squares of these.
    """

    busy_s: float = 0.0
    request_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    ended: int = 0
    withdrawn_tokens: int = 0
    repeated_tokens: int = 0
    token_steps: float = 0.0
    token_step_squares: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedWork:
    """Requests of one class that an agent holds and that wait for room in its batch.

    Attributes:
        cls: The class.
        fresh: Those that have not run here yet.
        evicted: Those that ran and made room for others.
        evicted_tokens: Prompt and earlier output of the evicted ones, which their engine computes again; none
            for those whose KV cache is in host memory.
    """

    cls: RequestClass
    fresh: int = 0
    evicted: int = 0
    evicted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAnswers:
    """Answers of one class that an agent holds and that have begun but not ended.

    Attributes:
        cls: The class.
        counts: For each bin of lengths so far (`length_histogram`) with any: its number, answers, tokens.
    """

    cls: RequestClass
    counts: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """What an agent says of its instance with each heartbeat.

    Attributes:
        holder: The instance and the life of its agent.
        accelerator: Kind of accelerator (`A10`, `A100`).
        models: Models it is able to serve.
        active_model: The model that is awake, if any.
        engines: State of the engine of each model.
        capacity: Of the awake engine; None while none is awake.
        running: Requests in its batch.
        parked: Requests it keeps that wait for room, evicted ones and others.
        staged: The same by class; empty from agents that do not tell.
        answers: How long the answers are that it is at; empty from agents that do not tell.
        kv_used_tokens: Tokens of KV cache its ledger counts as used.
        work: What the awake engine has done so far.
        operations: What it has done in this life to serve; empty from agents that do not tell.
        draining: It takes no new work.
        error: Which engines failed and why, else empty.
    """

    holder: Holder
    accelerator: str
    models: tuple[ModelId, ...]
    active_model: ModelId | None = None
    engines: tuple[tuple[ModelId, EngineState], ...] = ()
    capacity: EngineCapacity | None = None
    running: int = 0
    parked: int = 0
    staged: tuple[StagedWork, ...] = ()
    answers: tuple[OpenAnswers, ...] = ()
    kv_used_tokens: int = 0
    work: ServedWork = ServedWork()
    operations: OperationStats = NO_OPERATIONS
    draining: bool = False
    error: str = ""

    @property
    def id(self) -> InstanceId:
        """Name of the instance."""
        return self.holder.instance

    @property
    def kv_usage(self) -> float | None:
        """Share of the awake engine's KV cache in use; None while none is awake."""
        return None if self.capacity is None else self.kv_used_tokens / self.capacity.kv_tokens

    @property
    def batch_usage(self) -> float | None:
        """Share of the places in the awake engine's batch in use; None while none is awake."""
        return None if self.capacity is None else self.running / self.capacity.seqs_max
