"""Models, engines and LLM serving instances."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.lease import AgentProcess, Holder
from qlm.domain.operations import NO_OPERATIONS, OperationStats, SwapTier
from qlm.domain.values import value

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
    """Process up, weights in host memory (sleep level 1): needs a warm start."""
    UNLOADED = "unloaded"
    """Process up, weights discarded (sleep level 2): needs a reload from storage."""
    FAILED = "failed"

    @property
    def sleeps(self) -> bool:
        """True if its process sleeps, with or without weights; placements count both as warm."""
        # A reload into a live process (4 to 36 s by the shipped profiles) is far nearer to a warm start than
        # to a cold one (43 to 105 s) of the same model.
        return self in (EngineState.ASLEEP, EngineState.UNLOADED)

    @property
    def tier(self) -> SwapTier:
        """Source of the weights at a swap to its model."""
        if self is EngineState.ASLEEP:
            return SwapTier.WARM
        return SwapTier.RELOAD if self is EngineState.UNLOADED else SwapTier.COLD


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model that the cluster serves.

    Attributes:
        id: Its name for clients.
        tokenizer: `byte` for emulated models, else a directory with tokenizer.json and its configs.
        context_tokens: Largest number of prompt plus output tokens of one request.
        generation_config: Source of its sampling defaults: `auto` for its own generation_config.json, `vllm`
            for those of vLLM, else a folder with such a file.
        adapters: Names of its LoRA adapters, for clients and at its engines.
    """

    id: ModelId
    tokenizer: str
    context_tokens: int
    generation_config: str = "auto"
    adapters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.id, *self.adapters):
            if not name or len(name) > MODEL_NAME_CHARACTERS_MAX:
                raise InvalidValueError(
                    "model", name, f"a name of 1 to {MODEL_NAME_CHARACTERS_MAX} characters"
                )
        if self.context_tokens < 2:
            raise InvalidValueError("context_tokens", self.context_tokens, "at least 2")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapacity:
    """Capacity of one awake engine.

    Attributes:
        kv_tokens: Tokens of KV cache (`kv_cache_size_tokens` of vLLM).
        block_tokens: Tokens per KV block.
        seqs_max: Largest running batch (`--max-num-seqs`).
        context_tokens: Largest number of prompt plus output tokens of one request (`max_model_len`).
        batched_tokens_max: Most tokens computed in one iteration (`--max-num-batched-tokens`), if the engine
            reports it.
        batched_tokens_expected: The same by its profile and the configuration; missing from older agents.
    """

    kv_tokens: int
    block_tokens: int
    seqs_max: int
    context_tokens: int
    batched_tokens_max: int | None = None
    batched_tokens_expected: int | None = None

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "block_tokens", "seqs_max", "context_tokens"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"engine.{name}", getattr(self, name), "a positive number")
        for name in ("batched_tokens_max", "batched_tokens_expected"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InvalidValueError(f"engine.{name}", getattr(self, name), "a positive number")

    def blocks(self, tokens: int) -> int:
        """Return the KV blocks that `tokens` tokens of one request take."""
        return -(-tokens // self.block_tokens)

    @property
    def kv_blocks(self) -> int:
        """KV blocks in all."""
        return self.kv_tokens // self.block_tokens


@value
class ServedWork:
    """Work of the awake engine since its start: counters that grow until the model changes.

    The difference of two readings gives the real speed of the instance.

    Attributes:
        busy_s: Time with at least one request running.
        request_s: Running requests integrated over time: `request_s / busy_s` is the mean batch.
        prompt_tokens: Prompt tokens (with earlier output at a resume) of submitted generations, except those
            whose KV cache was loaded from host memory.
        output_tokens: Tokens generated.
        ended: Generations that ended by themselves.
        withdrawn_tokens: Prompt tokens of generations stopped before their first token. An engine that
            computes prompts in order of arrival had hardly begun with them.
        repeated_tokens: Prompt tokens that were recomputed after a preemption.
        token_steps: Sum of O (p + O / 2) over ended requests with prompt p and answer O: tokens in the KV
            cache, integrated over iterations.
        token_step_squares: Sum of the squares of these terms.
        cached_tokens: Prompt tokens that the engine did not compute: it found them in its prefix cache. They
            are known once a generation has ended, and 0 from engines that do not report them.
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
    cached_tokens: int = 0


@value
class StagedWork:
    """Requests of one class that an agent has pulled and that wait for a batch slot.

    Attributes:
        cls: The class.
        fresh: Requests that have not run here yet.
        evicted: Preempted requests.
        evicted_tokens: Prompt and earlier output of preempted requests, to be recomputed; those with a KV
            cache in host memory do not count.
    """

    cls: RequestClass
    fresh: int = 0
    evicted: int = 0
    evicted_tokens: int = 0


@value
class OpenAnswers:
    """Unfinished answers of one class at an agent.

    Attributes:
        cls: The class.
        counts: Bin number, answers and tokens, for each non-empty bin of lengths so far
            (`length_histogram`).
    """

    cls: RequestClass
    counts: tuple[tuple[int, int, int], ...]


@value
class CachedPrompts:
    """Share of the prompts of one class that prefix caches held: sums over its latest answers.

    Later ones weigh more. Only first generations count, of engines that report what they found.

    Attributes:
        cls: The class.
        prompts: Number of prompts.
        hits: Number of those of which something was found.
        prompt_tokens: Their tokens.
        cached_tokens: Tokens of them found in the prefix cache.
    """

    cls: RequestClass
    prompts: float
    hits: float
    prompt_tokens: float
    cached_tokens: float


@value
class InstanceStatus:
    """Status of an instance, sent by its agent with each heartbeat.

    Attributes:
        holder: The instance and the session of its agent.
        accelerator: Kind of accelerator (`A10`, `A100`).
        models: Models it is able to serve.
        active_model: Model that is awake, if any.
        engines: State of the engine of each model; those that sleep, least recently used first.
        capacity: Capacity of the awake engine; None while none is awake.
        running: Requests in its batch.
        parked: Pulled requests that wait for a batch slot, preempted ones included.
        staged: The same by class; empty from older agents.
        answers: Lengths of its unfinished answers; empty from older agents.
        prompts: Prompts of the latest answers and what of them was cached; empty from older agents.
        kv_used_tokens: Tokens of KV cache in use by its ledger, without requests of a pool that only wait.
        work: Work of the awake engine so far.
        operations: Operations in this session; empty from older agents.
        draining: True if it takes no new work.
        error: Engines that failed, with reasons; else empty.
        process: Process of its agent; None from older agents.
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
    prompts: tuple[CachedPrompts, ...] = ()
    kv_used_tokens: int = 0
    work: ServedWork = ServedWork()
    operations: OperationStats = NO_OPERATIONS
    draining: bool = False
    error: str = ""
    process: AgentProcess | None = None

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
        """Share of the awake engine's batch slots in use; None while none is awake."""
        return None if self.capacity is None else self.running / self.capacity.seqs_max
