"""Configuration of QLM: one YAML file for all parts, validated as a whole before anything starts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from qlm.agents.engines.refused_arguments import check_extra_args
from qlm.cli.config.addresses import check_address, merged, of_environment, with_origin
from qlm.cli.config.admin import AdminConfig
from qlm.cli.config.consistency import MistakesError, mistakes_between_sections, mistakes_in_names
from qlm.cli.config.errors import ConfigError, invalid_file
from qlm.cli.config.grpc import GrpcConfig
from qlm.cli.config.http import HttpConfig
from qlm.cli.config.observability import MonitorConfig, TracingConfig
from qlm.cli.config.ray import RayConfig
from qlm.cli.config.results import FilesConfig, ResultsConfig
from qlm.cli.config.section import ConfigSection, check_once
from qlm.cli.config.serving import (
    ADAPTERS_MAX,
    AdapterConfig,
    BatchPolicyName,
    EmulateConfig,
    OperationsConfig,
    RenderConfig,
    WatchdogConfig,
)
from qlm.cli.config.slo import SloConfig
from qlm.cli.config.yaml import read_mapping
from qlm.cli.starter.built_in import EMULATED
from qlm.cli.webhooks.section import WebhooksConfig
from qlm.domain.formats.clusters import Thresholds, check_thresholds
from qlm.domain.shown import without_passwords
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.core.limits import LimitsConfig
from qlm.planner.policy.default import DEFAULT_POLICY

Name = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EnvironmentValue = Annotated[str, Field(pattern=r"^[^\x00]*$")]
DeploymentName = Annotated[str, Field(min_length=1, max_length=20, pattern=r"^[a-z0-9][a-z0-9-]*$")]
ModelName = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[\x21-\x7e]+$")]
Ascending = Annotated[Thresholds, AfterValidator(lambda each: check_thresholds("cluster_tokens", each))]

INSTANCES_MAX: Final = 1000
MODELS_MAX: Final = 1000


class StopConfig(ConfigSection):
    """Shutdown after SIGTERM or SIGINT; a second signal ends the process at once.

    Attributes:
        notice_s: Time in which a gateway still serves, with 503 at /readyz, so that load balancers notice.
        grace_s: Time after that for open answers, and for requests that only their agent can finish.
    """

    notice_s: float = Field(0.0, ge=0, le=3600)
    grace_s: float = Field(20.0, ge=0, le=86_400)


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

    python: Path = Path("python3")
    dtype: str = "auto"
    block_tokens: int = Field(16, ge=1)
    kv_cache_bytes: int | None = Field(None, ge=1)
    seqs_max: int = Field(64, ge=1)
    batched_tokens_max: int | None = Field(None, ge=1, le=1_000_000)
    extra_args: tuple[str, ...] = ()
    pythonpath: Path | None = None
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
    path: Path | None = None
    profile: str | None = None
    config: Path | None = None
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
            QLM's scheduler; an engine at a `url` must have been started with it.
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

    @property
    def kind(self) -> str:
        """Name of its kind in plans; instances of several accelerators are a separate kind."""
        return self.accelerator if self.gpus == 1 else f"{self.accelerator}x{self.gpus}"

    @model_validator(mode="after")
    def _sound(self) -> Self:
        check_once("models", list(self.models))
        check_once("swap_tiers", list(self.swap_tiers))
        if self.url is not None:
            check_address("url", self.url, ("http", "https"))
            if len(self.models) != 1:
                raise ValueError(f"has a url and the models {list(self.models)}; expected exactly one model")
        return self


class Config(ConfigSection):
    """The whole configuration.

    Attributes:
        http: HTTP listener of the gateway.
        grpc: gRPC listener of the gateway.
        admin: HTTP listener of the gateway for operators.
        connections: Limits of connections and of what comes on them.
        stop: Shutdown of a process.
        data_dir: Folder of the embedded queue, logs and process records.
        broker: `sqlite` (in data_dir) or an `amqp://` address.
        store: `embedded` (with the sqlite broker) or a `redis://` address.
        deployment_name: Name of this deployment: all its queues in RabbitMQ, and its keys and channels in
            Redis, begin with it. Deployments that share a RabbitMQ or a Redis need different names: the
            second one of a name does not start.
        store_prefix: Replaced by `deployment_name`, and read in this version only: prefix of keys and
            channels in Redis, with the queues of the deployment `qlm`.
        broker_ack_timeout_s: RabbitMQ's `consumer_timeout`, seconds. Agents renew each delivery after a third
            of it, so that a request may run for longer.
        planner: Planner of the controller: `qlm`, the plan generator, or `edf`, earliest deadline first.
        default_slo: Objective of requests that name none.
        interactive_slo: Objective of `service_tier: priority`.
        models: Served models.
        instances: LLM serving instances.
        vllm: Start of vLLM.
        emulate: Behaviour of emulated engines.
        ray: Ray cluster of the agents under `--runtime ray`.
        operations: LLM serving operations in use.
        watchdog: Watchdog of the engines' progress.
        limits: Limits, defaults and timeouts of the gateway.
        results: Ended requests that stay known.
        files: Files and batches of clients.
        webhooks: Programs that are notified of the ends of responses and batches.
        profiles: Directories with further profile files.
        monitor: Address of metrics and health in processes without a gateway.
        tracing: Export of spans.
    """

    http: HttpConfig = HttpConfig()
    grpc: GrpcConfig = GrpcConfig()
    admin: AdminConfig = AdminConfig()
    connections: ConnectionLimits = ConnectionLimits()
    stop: StopConfig = StopConfig()
    data_dir: Path = Path("qlm-data")
    broker: str = "sqlite"
    store: str = "embedded"
    deployment_name: DeploymentName = "qlm"
    store_prefix: str | None = None
    broker_ack_timeout_s: float = Field(1800.0, ge=1, le=31_536_000)
    planner: Literal["qlm", "edf"] = DEFAULT_POLICY
    default_slo: SloConfig = SloConfig(deadline_ms=60_000)
    interactive_slo: SloConfig = SloConfig(ttft_ms=1000, tpot_ms=100)
    models: tuple[ModelConfig, ...] = Field(min_length=1, max_length=MODELS_MAX)
    instances: tuple[InstanceConfig, ...] = Field(min_length=1, max_length=INSTANCES_MAX)
    vllm: VllmConfig = VllmConfig()
    emulate: EmulateConfig = EmulateConfig()
    ray: RayConfig = RayConfig()
    operations: OperationsConfig = OperationsConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    limits: LimitsConfig = LimitsConfig()
    results: ResultsConfig = ResultsConfig()
    files: FilesConfig = FilesConfig()
    webhooks: WebhooksConfig = WebhooksConfig()
    profiles: tuple[Path, ...] = ()
    monitor: MonitorConfig = MonitorConfig()
    tracing: TracingConfig = TracingConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if mistakes := list(mistakes_between_sections(self)):
            raise MistakesError(mistakes)
        return self

    @property
    def key_prefix(self) -> str:
        """Prefix of all keys and channels in Redis."""
        return f"{self.deployment_name}:" if self.store_prefix is None else self.store_prefix

    @property
    def embedded(self) -> bool:
        """True if queue and state live in this process."""
        return self.broker == "sqlite"


def load_config(
    path: Path, overrides: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Config:
    """Read a configuration file.

    Args:
        path: The file.
        overrides: Settings of the command line; they replace or extend sections of the file.
        environment: Replaces addresses and the token in the file, but nothing of the command line.

    Returns:
        With the built-in emulated models and instances if neither it nor a broker is named: it is then for
        trials in one process, and has only what differs from `qlm serve` without a file.

    Raises:
        ConfigError: With file, key, value and expectation.
    """
    read = read_mapping(path, "models and instances")
    given = {
        key: value
        for key, value in of_environment(environment).items()
        if isinstance(value, Mapping) or key not in overrides
    }
    whole = merged(merged(read, given), overrides)
    if not whole.keys() & {"models", "instances", "broker"}:
        whole = EMULATED | whole
    return parse_config(whole, with_origin(str(path), given))


def parse_config(raw: Mapping[str, Any], where: str) -> Config:
    """Validate configuration data; `where` names its origin in errors."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        mistakes = str(invalid_file(where, error, Config, beside=list(mistakes_in_names(raw))))
        raise ConfigError(without_passwords(mistakes)) from error
