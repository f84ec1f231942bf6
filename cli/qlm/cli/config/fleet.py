"""Sections of the served models and of the instances that serve them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from qlm.agents.engines.refused_arguments import check_extra_args
from qlm.cli.config.addresses import check_address
from qlm.cli.config.section import ConfigSection, WrittenPath, check_once
from qlm.cli.config.serving import (
    ADAPTERS_MAX,
    AdapterConfig,
    BatchingHost,
    BatchPolicyName,
    RenderConfig,
    check_batching_host,
)
from qlm.domain.formats.clusters import Thresholds, check_thresholds

Name = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EnvironmentValue = Annotated[str, Field(pattern=r"^[^\x00]*$")]
ModelName = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[\x21-\x7e]+$")]
Ascending = Annotated[Thresholds, AfterValidator(lambda each: check_thresholds("cluster_tokens", each))]

INSTANCES_MAX: Final = 1000
MODELS_MAX: Final = 1000


class VllmConfig(ConfigSection):
    """Start of `vllm serve` for a model.

    Attributes:
        python: Interpreter of the environment that has vLLM.
        dtype: `--dtype`.
        block_tokens: `--block-size`.
        kv_cache_bytes: `--kv-cache-memory-bytes`, on each accelerator of an engine; fixed so that several
            engines fit one accelerator.
        seqs_max: `--max-num-seqs`.
        batched_tokens_max: `--max-num-batched-tokens`; without it, the profile's.
        extra_args: Further arguments. Those without effect behind QLM, or that it sets itself, are refused by
            name.
        pythonpath: Folder prepended to its Python path, for a sitecustomize of its own.
        cpu: Set the environment that the CPU build needs.
        batching_async: With `batching`, leave asynchronous scheduling on, which is not verified.
        batching_offloading: With `batching`, offload KV blocks to host memory, which is not verified.
        ready_timeout_s: Longest start, seconds.
    """

    python: WrittenPath = Path("python3")
    dtype: str = "auto"
    block_tokens: int = Field(16, ge=1)
    kv_cache_bytes: int | None = Field(None, ge=1)
    seqs_max: int = Field(64, ge=1)
    batched_tokens_max: int | None = Field(None, ge=1, le=1_000_000)
    extra_args: tuple[str, ...] = ()
    pythonpath: WrittenPath | None = None
    cpu: bool = False
    batching_async: bool = False
    batching_offloading: bool = False
    ready_timeout_s: float = Field(600.0, gt=0, le=86_400)

    @model_validator(mode="after")
    def _arguments_with_effect(self) -> Self:
        check_extra_args(self.extra_args)
        return self


class ModelConfig(ConfigSection):
    """A served model.

    Attributes:
        id: Its name for clients, as in `GET /v1/models`.
        engine: `emulated` or `vllm`; instances with a `url` are attached to instead.
        path: Directory with weights and tokenizer; needed by `vllm`.
        kv_swap: Storage of KV blocks in host memory: `auto` where loading is faster than recomputing, or
            `never`.
        profile: Name of the model in the profiles; without it, the id.
        config: Its `config.json`, or the folder with it, from which its speed is computed where there is no
            profile; without it, that in `path`.
        context_tokens: Largest number of prompt plus output tokens.
        generation_config: Sampling parameters of requests that name none: `auto` for the model's own
            `generation_config.json`, `vllm` for those of vLLM, or a folder with such a file, whose
            `max_new_tokens` then bounds every answer. As vLLM's `--generation-config`.
        cluster_tokens: Prompt lengths, ascending, at which its classes are divided, at most two; an empty
            list divides none; without it, they are found (`operations.cluster`).
        adapters: Its LoRA adapters.
        render: Its render tier; without it, an emulated model has its own, and others none.
    """

    id: ModelName
    engine: Literal["emulated", "vllm"] = "emulated"
    path: WrittenPath | None = None
    profile: str | None = None
    config: WrittenPath | None = None
    context_tokens: int = Field(8192, ge=2, le=100_000_000)
    kv_swap: Literal["auto", "never"] = "auto"
    generation_config: Annotated[str, Field(min_length=1)] = "auto"
    cluster_tokens: Ascending | None = None
    adapters: tuple[AdapterConfig, ...] = Field((), max_length=ADAPTERS_MAX)
    render: RenderConfig | None = None

    @model_validator(mode="after")
    def _fits_its_engine(self) -> Self:
        if self.engine == "vllm" and self.path is None:
            raise ValueError(
                "has no path; expected the folder with its weights and tokenizer, since its engine is vllm"
            )
        if self.engine == "emulated" and self.render is not None:
            self.render.check_emulated()
        return self


class InstanceConfig(ConfigSection):
    """LLM serving instance: one accelerator (or several used as one) and the models it may serve.

    Attributes:
        id: Its name.
        accelerator: Kind of accelerator, as in the profiles.
        gpus: Accelerators that its engines span (tensor parallelism).
        models: Ids of models; the first is brought up at the start.
        url: Base address of a running vLLM-compatible engine to attach to; then exactly one model.
        host_memory_gib: Host memory for sleeping models, and for prefetched weights files.
        host_kv_gib: Host memory of each of its engines for KV blocks of preempted requests; 0 for none.
        swap_tiers: Tiers in which models may sleep; without any, a model swap ends the old model's engine.
        environment: Environment variables of its engines (CUDA_VISIBLE_DEVICES, say).
        seqs_max: Largest batch; without it, the profile's, or `vllm.seqs_max`.
        batched_tokens_max: Most tokens of one iteration; without it, `vllm.batched_tokens_max` for engines
            that are not emulated, or the profile's.
        kv_cache_bytes: KV cache of its vLLM engines, instead of `vllm.kv_cache_bytes`.
        batching: Batch policy of its engines; without it, first come, first served. It starts vLLM with
            QLM's scheduler; an engine at a `url` must have been started with it. See `batching_by`.
        batching_by: What puts that policy into effect: `engine`, or `aborts` on an engine without QLM's
            scheduler. Then the agent aborts who is not to run and resumes it later; for `edf`,
            `virtual-queue`, `annealing`, `annealing-continuous` and `fcfs` only.
    """

    id: Name
    accelerator: Annotated[str, Field(min_length=1, max_length=40)]
    gpus: int = Field(1, ge=1, le=64)
    models: tuple[str, ...] = Field(min_length=1)
    url: str | None = None
    host_memory_gib: float = Field(64.0, gt=0, le=1_000_000)
    host_kv_gib: float = Field(0.0, ge=0, le=1_000_000)
    swap_tiers: tuple[Literal["warm", "reload"], ...] = ("warm", "reload")
    environment: Mapping[EnvironmentName, EnvironmentValue] = {}
    seqs_max: int | None = Field(None, ge=1, le=100_000)
    batched_tokens_max: int | None = Field(None, ge=1, le=1_000_000)
    kv_cache_bytes: int | None = Field(None, ge=1)
    batching: BatchPolicyName | None = None
    batching_by: BatchingHost = "engine"

    @property
    def engine_batching(self) -> str | None:
        """Batch policy that its engines host; None for their own rule."""
        return self.batching if self.batching_by == "engine" else None

    @property
    def kind(self) -> str:
        """Name of its kind in plans; instances of several accelerators are a separate kind."""
        return self.accelerator if self.gpus == 1 else f"{self.accelerator}x{self.gpus}"

    @model_validator(mode="after")
    def _sound(self) -> Self:
        check_once("models", list(self.models))
        check_once("swap_tiers", list(self.swap_tiers))
        check_batching_host(self.batching, self.batching_by)
        if self.url is not None:
            check_address("url", self.url, ("http", "https"))
            if len(self.models) != 1:
                raise ValueError(f"has a url and the models {list(self.models)}; expected exactly one model")
        return self
