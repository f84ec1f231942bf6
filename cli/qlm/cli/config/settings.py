"""Configuration of QLM: one YAML file for all parts, validated as a whole before anything starts."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from qlm.cli.config.addresses import merged, of_environment, with_origin
from qlm.cli.config.consistency import (
    MistakesError,
    mistakes_in_names,
    shared_ports,
    store_and_broker,
    unknown_models,
)
from qlm.cli.config.errors import ConfigError, invalid_file
from qlm.cli.config.fleet import INSTANCES_MAX, MODELS_MAX, InstanceConfig, ModelConfig, VllmConfig
from qlm.cli.config.listeners.admin import AdminConfig
from qlm.cli.config.listeners.grpc import GrpcConfig
from qlm.cli.config.listeners.http import HttpConfig
from qlm.cli.config.observability import MonitorConfig, TracingConfig
from qlm.cli.config.ray import RayConfig
from qlm.cli.config.results import FilesConfig, ResultsConfig
from qlm.cli.config.section import ConfigSection, WrittenPath, twice
from qlm.cli.config.serving import (
    EmulateConfig,
    OperationsConfig,
    WatchdogConfig,
)
from qlm.cli.config.slo import SloConfig
from qlm.cli.config.yaml import read_mapping
from qlm.cli.rendering.section import MediaConfig
from qlm.cli.starter.built_in import EMULATED
from qlm.cli.webhooks.section import WebhooksConfig
from qlm.domain.shown import shown, without_passwords
from qlm.gateway.core.connection_limits import ConnectionLimits
from qlm.gateway.core.limits import LimitsConfig
from qlm.planner.policy.default import DEFAULT_POLICY

DeploymentName = Annotated[str, Field(min_length=1, max_length=20, pattern=r"^[a-z0-9][a-z0-9-]*$")]


class StopConfig(ConfigSection):
    """Shutdown after SIGTERM or SIGINT; a second signal ends the process at once.

    Attributes:
        notice_s: Time in which a gateway still serves, with 503 at /readyz, so that load balancers notice.
        grace_s: Time after that for open answers, and for requests that only their agent can finish.
    """

    notice_s: float = Field(0.0, ge=0, le=3600)
    grace_s: float = Field(20.0, ge=0, le=86_400)


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
        media: Images, sound and video in prompts.
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
    data_dir: WrittenPath = Path("qlm-data")
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
    media: MediaConfig = MediaConfig()
    webhooks: WebhooksConfig = WebhooksConfig()
    profiles: tuple[WrittenPath, ...] = ()
    monitor: MonitorConfig = MonitorConfig()
    tracing: TracingConfig = TracingConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if mistakes := list(self._mistakes()):
            raise MistakesError(mistakes)
        return self

    def _mistakes(self) -> Iterator[str]:
        models = [model.id for model in self.models]
        served = [(each.id, each.models) for each in self.instances]
        yield from twice("models", [*models, *(each.id for model in self.models for each in model.adapters)])
        yield from twice("instances", [each.id for each in self.instances])
        yield from unknown_models(models, served)
        yield from self._adapters_without_path()
        yield from shared_ports(
            [
                ("http", self.http.host, self.http.port),
                ("grpc", self.grpc.host, self.grpc.port),
                ("admin", self.admin.host, self.admin.port),
            ]
        )
        if self.store_prefix is not None and "deployment_name" in self.model_fields_set:
            yield (
                f"has the store_prefix {shown(self.store_prefix)} and a deployment_name; "
                "expected deployment_name alone, which replaces it"
            )
        yield from store_and_broker(self.store, self.broker)

    def _adapters_without_path(self) -> Iterator[str]:
        """Name adapters that engines which are started would not find."""
        started = {name for each in self.instances if each.url is None for name in each.models}
        for model in self.models:
            for adapter in model.adapters:
                if adapter.path is None and model.engine == "vllm" and model.id in started:
                    yield (
                        f"has the adapter {adapter.id!r} of {model.id} without path; "
                        "expected its folder, since engines are started with it"
                    )

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
