"""The configuration file of QLM: one YAML file for all parts, checked whole before anything starts."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from qlm.cli.config_addresses import addresses, check_address, with_origin
from qlm.cli.config_errors import ConfigError, explain
from qlm.cli.config_grpc import GrpcConfig
from qlm.cli.config_observe import MonitorConfig, TracingConfig
from qlm.cli.config_ray import RayConfig
from qlm.cli.config_slo import SloConfig
from qlm.cli.config_yaml import read_mapping
from qlm.domain.shown import shown, without_password, without_passwords
from qlm.gateway.limits import P_MET_MIN_MAX

Name = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EnvironmentValue = Annotated[str, Field(pattern=r"^[^\x00]*$")]
ModelName = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[\x21-\x7e]+$")]

INSTANCES_MAX: Final = 1000
MODELS_MAX: Final = 1000


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class HttpConfig(_Section):
    """Where the gateway listens.

    Attributes:
        host: Address; `0.0.0.0` for all of the machine's.
        port: Port of the OpenAI API, `/admin` and `/metrics`.
    """

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=1, le=65535, strict=True)


class StopConfig(_Section):
    """How a process ends when it is told to (SIGTERM, SIGINT); told again, it ends at once.

    Attributes:
        notice_s: How long a gateway serves on, with 503 at /readyz, so that balancers notice.
        grace_s: How long open answers, and requests that only their agent can finish, may go on after that.
    """

    notice_s: float = Field(0.0, ge=0, le=3600)
    grace_s: float = Field(20.0, ge=0, le=86_400)


class VllmConfig(_Section):
    """How `vllm serve` is started for a model.

    Attributes:
        python: Interpreter of the environment that has vLLM.
        dtype: `--dtype`.
        block_tokens: `--block-size`.
        kv_cache_bytes: `--kv-cache-memory-bytes`, on each accelerator of an engine; fixed so that several
            engines fit one accelerator.
        seqs_max: `--max-num-seqs`.
        extra_args: Further arguments, as they are.
        pythonpath: Folder put before its Python path, for a sitecustomize of its own.
        cpu: It is the CPU build: set the environment it needs.
        ready_timeout_s: Longest start.
    """

    python: Path = Path("python3")
    dtype: str = "auto"
    block_tokens: int = Field(16, ge=1)
    kv_cache_bytes: int | None = Field(None, ge=1)
    seqs_max: int = Field(64, ge=1)
    extra_args: tuple[str, ...] = ()
    pythonpath: Path | None = None
    cpu: bool = False
    ready_timeout_s: float = Field(600.0, gt=0, le=86_400)


class EmulateConfig(_Section):
    """How emulated engines behave.

    Attributes:
        time_scale: Emulated seconds take this many real ones.
        mean_output_tokens: Average length of answers that end by themselves.
        cold_start: Take the time to load weights when an engine starts.
        fixed_ms: Answer each request after this time, whatever the load, instead of emulating a GPU.
    """

    time_scale: float = Field(1.0, gt=0, le=1000)
    mean_output_tokens: int = Field(200, ge=1)
    cold_start: bool = False
    fixed_ms: float | None = Field(None, gt=0, le=3_600_000)


class ModelConfig(_Section):
    """A served model.

    Attributes:
        id: Its name for clients, as in `GET /v1/models`.
        engine: `emulated` or `vllm`; instances with a `url` are attached to instead.
        path: Directory with weights and tokenizer; needed by `vllm`.
        kv_swap: Whether its engines keep KV blocks in host memory: `auto` where loading them is quicker than
            computing them again, `never`.
        profile: Name of the model in the profiles; its own id if not given.
        context_tokens: Prompt plus output at most.
    """

    id: ModelName
    engine: Literal["emulated", "vllm"] = "emulated"
    path: Path | None = None
    profile: str | None = None
    context_tokens: int = Field(8192, ge=2, le=100_000_000)
    kv_swap: Literal["auto", "never"] = "auto"

    @model_validator(mode="after")
    def _path_for_vllm(self) -> Self:
        if self.engine == "vllm" and self.path is None:
            raise ValueError(
                "has no path; expected the folder with its weights and tokenizer, since its engine is vllm"
            )
        return self


class InstanceConfig(_Section):
    """One LLM serving instance: an accelerator (or several as one) and the models it may serve.

    Attributes:
        id: Its name.
        accelerator: Kind of accelerator, as in the profiles.
        gpus: Accelerators that its engines span (tensor parallelism).
        models: Ids of models; the first is brought up at the start.
        url: Base address of a running vLLM-compatible engine to attach to; then exactly one model.
        host_memory_gib: Memory for sleeping models, and for weights files read ahead of their model's turn.
        host_kv_gib: Host memory of each of its engines for KV blocks of requests that made room; 0 for none.
        swap_tiers: In which models may sleep; without any, a model swap ends the engine of the old model.
        environment: Environment variables of its engines (CUDA_VISIBLE_DEVICES, say).
        seqs_max: Requests in its batch at most; without, the profile's, or `vllm.seqs_max`.
        kv_cache_bytes: Of its engines of vLLM, instead of `vllm.kv_cache_bytes`.
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
    kv_cache_bytes: int | None = Field(None, ge=1)

    @property
    def kind(self) -> str:
        """Name of its kind in plans: instances of several accelerators are a kind of their own."""
        return self.accelerator if self.gpus == 1 else f"{self.accelerator}x{self.gpus}"

    @model_validator(mode="after")
    def _sound(self) -> Self:
        _once("models", list(self.models))
        _once("swap_tiers", list(self.swap_tiers))
        if self.url is not None:
            check_address("url", self.url, ("http", "https"))
            if len(self.models) != 1:
                raise ValueError(f"has a url and the models {list(self.models)}; expected exactly one model")
        return self


class OperationsConfig(_Section):
    """Which LLM serving operations are used beside pulling and model swaps.

    Attributes:
        evict: Running requests make room for more urgent ones, swapped to host memory or computed again.
        demote: Requests that cannot be in time any more make way for those that can.
        limit_batch: Batch work waits while requests that run need a faster pace.
        warm_ahead: Weights files of models later in a virtual queue are read into host memory.
        balance: The waiting requests of a class are spread over instances.
    """

    evict: bool = True
    demote: bool = True
    limit_batch: bool = False
    warm_ahead: bool = True
    balance: bool = True


class LimitsConfig(_Section):
    """Limits of the gateway.

    Attributes:
        queue_depth_max: Waiting requests in the cluster; beyond, 429 with Retry-After.
        p_met_min: Refuse (429) what is forecast to meet its objective with a smaller probability; none
            refuses nothing for that. Requests may say otherwise.
        retry_after_max_s: Longest Retry-After, seconds.
        body_bytes_max: Largest body of a request; beyond, 413.
        default_max_tokens: Output limit of a request that names none, if the context has room for it.
    """

    queue_depth_max: int = Field(100_000, ge=1)
    p_met_min: float | None = Field(None, ge=0, le=P_MET_MIN_MAX)
    retry_after_max_s: float = Field(60.0, ge=1, le=86_400)
    body_bytes_max: int = Field(4 * 1024 * 1024, ge=1024)
    default_max_tokens: int = Field(512, ge=1)


class Config(_Section):
    """The whole configuration.

    Attributes:
        http: Where the gateway listens.
        grpc: Where it listens for gRPC.
        stop: How a process ends when it is told to.
        data_dir: Where the embedded queue, logs and process records are kept.
        broker: `sqlite` (in data_dir) or an `amqp://` address.
        store: `embedded` (with the sqlite broker) or a `redis://` address.
        store_prefix: Prefix of all keys and channels in Redis.
        broker_ack_timeout_s: RabbitMQ's `consumer_timeout`, seconds. Agents renew their custody of a message
            each third of it, so that a request may run for longer.
        planner: What plans: `qlm`, the plan generator, or `edf`, earliest deadline first.
        default_slo: Objective of requests that name none.
        interactive_slo: Objective of `service_tier: priority`.
        models: What is served.
        instances: By what.
        vllm: How vLLM is started.
        emulate: How emulated engines behave.
        ray: Where agents run under `--runtime ray`.
        operations: Which operations are used.
        limits: Limits of the gateway.
        profiles: Directories with further profile files.
        monitor: Where processes without a gateway tell of themselves.
        tracing: Where spans go.
    """

    http: HttpConfig = HttpConfig()
    grpc: GrpcConfig = GrpcConfig()
    stop: StopConfig = StopConfig()
    data_dir: Path = Path("qlm-data")
    broker: str = "sqlite"
    store: str = "embedded"
    store_prefix: str = "qlm:"
    broker_ack_timeout_s: float = Field(1800.0, ge=1, le=31_536_000)
    planner: Literal["qlm", "edf"] = "qlm"
    default_slo: SloConfig = SloConfig(deadline_ms=60_000)
    interactive_slo: SloConfig = SloConfig(ttft_ms=1000, tpot_ms=100)
    models: tuple[ModelConfig, ...] = Field(min_length=1, max_length=MODELS_MAX)
    instances: tuple[InstanceConfig, ...] = Field(min_length=1, max_length=INSTANCES_MAX)
    vllm: VllmConfig = VllmConfig()
    emulate: EmulateConfig = EmulateConfig()
    ray: RayConfig = RayConfig()
    operations: OperationsConfig = OperationsConfig()
    limits: LimitsConfig = LimitsConfig()
    profiles: tuple[Path, ...] = ()
    monitor: MonitorConfig = MonitorConfig()
    tracing: TracingConfig = TracingConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known = [model.id for model in self.models]
        _once("models", known)
        _once("instances", [instance.id for instance in self.instances])
        for instance in self.instances:
            for model in instance.models:
                if model not in known:
                    raise ValueError(
                        f"has the model {model!r} in instance {instance.id}; expected one of {known}"
                    )
        embedded = self.broker == "sqlite", self.store == "embedded"
        if any(embedded) != all(embedded):
            raise ValueError(
                f"has the broker {without_password(self.broker)!r} "
                f"and the store {without_password(self.store)!r}; "
                "expected sqlite with embedded, or an amqp:// with a redis:// address"
            )
        if not embedded[0]:
            check_address("broker", self.broker, ("amqp", "amqps"))
            check_address("store", self.store, ("redis", "rediss", "unix"))
        return self

    @property
    def embedded(self) -> bool:
        """Whether queue and state live in this process."""
        return self.broker == "sqlite"


def load_config(
    path: Path, overrides: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Config:
    """Read a configuration file.

    Args:
        path: The file.
        overrides: From the command line; they replace or extend its sections.
        environment: May replace the addresses in the file, but not those of the command line.

    Raises:
        ConfigError: One message with file, key, value and expectation.
    """
    merged = read_mapping(path, "models and instances")
    given = {key: address for key, address in addresses(environment).items() if key not in overrides}
    merged.update(given)
    for key, value in overrides.items():
        inner = merged.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            merged[key] = {**inner, **value}
        else:
            merged[key] = value
    return parse_config(merged, with_origin(str(path), given))


def parse_config(raw: Mapping[str, Any], where: str) -> Config:
    """Check configuration data; `where` names its origin in errors."""
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{where}: {without_passwords(explain(error))}") from error


def _once(what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"has {shown(name)} twice in {what}; expected each once")
