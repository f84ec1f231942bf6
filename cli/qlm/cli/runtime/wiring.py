"""Composition root: turns the configuration into the settings of components."""

import itertools
import secrets
import socket
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from qlm.agents.batching.policies.registry import FCFS
from qlm.agents.core.scheduling.visits.backlog import Patience
from qlm.agents.core.state import AgentSettings
from qlm.agents.core.stats.progress import WatchSettings
from qlm.agents.engines.adapters import Adapter, read_adapter
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.fleet import InstanceConfig, ModelConfig
from qlm.cli.config.settings import Config
from qlm.cli.profiling.named import read_profile
from qlm.cli.runtime.token_budget import with_token_budget
from qlm.cli.speed.choice import choose
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.fleet import Fleet
from qlm.controller.core.grouping import NewGroupId
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ModelSpec
from qlm.domain.group import RequestClass
from qlm.domain.ids import ControllerId, GatewayId, GroupId, InstanceId, ModelId, RequestId
from qlm.gateway.core.configured import Configured, ConfiguredInstance
from qlm.gateway.core.limits import GatewayLimits
from qlm.planner.problem import PROMISE_S, Kind, ModelCost
from qlm.rct_estimator.host_memory import ENGINE_PROCESS_BYTES
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.profile import Profile
from qlm.store.core.limits import StoreLimits

GIB = 1024**3

DELIVERY_RENEWAL_SHARE: Final = 1 / 3
"""Share of the broker's acknowledgement timeout at which deliveries are renewed: well under half of it."""


def model_specs(config: Config) -> tuple[ModelSpec, ...]:
    """List the served models with their tokenizers."""
    return tuple(
        ModelSpec(
            id=ModelId(model.id),
            tokenizer="byte" if model.engine == "emulated" else str(model.path),
            context_tokens=model.context_tokens,
            generation_config=model.generation_config,
            adapters=tuple(each.id for each in model.adapters),
        )
        for model in config.models
    )


def launched_adapters(model: ModelConfig) -> tuple[Adapter, ...]:
    """Return the adapters of a model with which its engines are started.

    Raises:
        ConfigError: The folder of one lacks its settings, or they cannot be read.
    """
    try:
        return tuple(read_adapter(each.id, each.path) for each in model.adapters if each.path is not None)
    except InvalidValueError as error:
        raise ConfigError(str(error)) from error


def check(config: Config, where: str, instances: Collection[str] | None = None) -> None:
    """Check the configuration against the file system and the profiles.

    Args:
        config: The configuration.
        where: Its origin.
        instances: Instances whose engines this process starts; None for all.

    Raises:
        ConfigError: Models' folders lack files, or emulated models profiles; a line for each.
    """
    mistakes = [
        *_mistakes_in_files(config),
        *_mistakes_in_adapters(config, instances),
        *mistakes_in_profiles(config),
    ]
    if mistakes:
        raise ConfigError("\n".join(f"{where}: {each}" for each in mistakes))


def _mistakes_in_files(config: Config) -> Iterator[str]:
    """Return what the folders of models lack."""
    for model in config.models:
        if model.path is not None and not (model.path / "tokenizer.json").is_file():
            yield (
                f"models has {model.id!r} with the path {str(model.path)!r}; "
                "expected a folder with weights and tokenizer.json"
            )
        source = model.generation_config
        if source not in ("auto", "vllm") and not (Path(source) / "generation_config.json").is_file():
            yield (
                f"models has {model.id!r} with the generation_config {source!r}; "
                "expected auto, vllm, or a folder with generation_config.json"
            )


def _mistakes_in_adapters(config: Config, instances: Collection[str] | None) -> Iterator[str]:
    """Return which folders of adapters the engines that are started could not use."""
    started = {
        name
        for each in config.instances
        if each.url is None and (instances is None or each.id in instances)
        for name in each.models
    }
    for model in config.models:
        for adapter in model.adapters if model.engine == "vllm" and model.id in started else ():
            try:
                if adapter.path is not None:
                    read_adapter(adapter.id, adapter.path)
            except InvalidValueError as error:
                yield str(error)


def mistakes_in_profiles(config: Config) -> Iterator[str]:
    """Return what is wrong with profiles, and which emulated models have none where they are to run."""
    try:
        profiles = load_profiles(config.profiles)
    except ConfigError as error:
        yield str(error)
        return
    models = {model.id: model for model in config.models}
    for instance in config.instances:
        for name in instance.models:
            try:
                effective_profile(config, models[name], instance, profiles)
            except ConfigError as error:
                yield str(error)


def gateway_limits(config: Config) -> GatewayLimits:
    """Return the limits of the gateway."""
    slos = {"default_slo": config.default_slo.slo(), "interactive_slo": config.interactive_slo.slo()}
    return GatewayLimits(**dict(config.limits), **slos)


def configured(config: Config) -> Configured:
    """Return what a gateway tells operators of its configuration."""
    instances = [
        ConfiguredInstance(
            id=InstanceId(each.id),
            accelerator=each.kind,
            models=tuple(map(ModelId, each.models)),
            batching=each.batching,
        )
        for each in config.instances
    ]
    return Configured(
        instances=instances,
        data_dir=config.data_dir if config.embedded else None,
        keys_required=config.http.keys_required,
    )


def store_limits(config: Config) -> StoreLimits:
    """Return the limits of the shared state."""
    return StoreLimits(results_max=config.results.kept_max, result_ttl_s=config.results.kept_s)


def agent_settings(config: Config, instance: InstanceConfig | None = None) -> AgentSettings:
    """Return the settings of an agent; of one without a batch policy if no instance is given."""
    used = config.operations
    return AgentSettings(
        delivery_renewal_s=config.broker_ack_timeout_s * DELIVERY_RENEWAL_SHARE,
        preempts=used.evict,
        demotes=used.demote,
        limits_concurrency=used.limit_batch,
        prefetches=used.warm_ahead,
        visits=used.visit,
        patience_s=used.patience_s,
        late_weight=used.late_weight,
        watch=WatchSettings(**dict(config.watchdog)),
        batching=(instance.batching if instance else None) or FCFS,
        aborts=instance is not None and instance.batching_by == "aborts",
    )


def controller_settings(config: Config) -> ControllerSettings:
    """Return the settings of the controller."""
    used = config.operations
    return ControllerSettings(
        demotes=used.demote,
        swap_hysteresis=not used.visit,
        balances=used.balance,
        clusters=used.cluster,
        strands=True,
        cluster_tokens={
            ModelId(model.id): model.cluster_tokens
            for model in config.models
            if model.cluster_tokens is not None
        },
        places=used.place,
        patience=Patience(used.patience_s, used.late_weight) if used.visit else None,
        promise_s=PROMISE_S[used.promises],
    )


def profile_file(model: ModelConfig, instance: InstanceConfig, folders: Sequence[Path]) -> Path | None:
    """Return the file of a profile; None for a shipped profile."""
    wanted = (model.profile or model.id, instance.accelerator, instance.gpus)
    for folder in reversed(folders):
        for file in sorted(folder.glob("*.yaml"), reverse=True):
            profile = read_profile(file)
            if (profile.model, profile.accelerator, profile.gpus) == wanted:
                return file
    return None


def load_profiles(folders: Sequence[Path]) -> tuple[Profile, ...]:
    """Read the shipped profiles and those of further folders; later ones win.

    Raises:
        ConfigError: A file cannot be read or holds a wrong value; file and key are named.
    """
    profiles = {(p.model, p.accelerator, p.gpus): p for p in builtin_profiles()}
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"profiles has {str(folder)!r}; expected a folder with *.yaml profile files")
        for file in sorted(folder.glob("*.yaml")):
            try:
                profile = read_profile(file)
            except InvalidValueError as error:
                raise ConfigError(str(error)) from error
            except OSError as error:
                raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
            profiles[(profile.model, profile.accelerator, profile.gpus)] = profile
    return tuple(profiles.values())


def profile_of(model: ModelConfig, instance: InstanceConfig, profiles: Sequence[Profile]) -> Profile:
    """Return the profile of a model on an instance's accelerators; see `choose`."""
    return choose(model, instance, profiles).profile


def effective_profile(
    config: Config, model: ModelConfig, instance: InstanceConfig, profiles: Sequence[Profile]
) -> Profile:
    """Return the profile of a model on an instance, with the token budget that the configuration gives it.

    Raises:
        ConfigError: An emulated model has no profile there, or the token budget is too small.
    """
    profile = profile_of(model, instance, profiles)
    if model.adapters and model.engine == "vllm":
        # A reload does not bring adapters back: it costs as much as a cold start, so that it is never chosen.
        profile = replace(profile, swap_reload_s=profile.swap_cold_s)
    return with_token_budget(profile, config, model, instance)


def fleet(config: Config, profiles: Sequence[Profile]) -> Fleet:
    """Return the costs and speeds of models on each kind of accelerator, for the controller.

    Where instances of a kind differ in host memory or token budget, the smallest counts. Host memory in which
    no model may sleep counts as none.
    """
    models = {model.id: model for model in config.models}
    costs: dict[str, dict[ModelId, ModelCost]] = {}
    speeds: dict[tuple[ModelId, str], Profile] = {}
    memory: dict[str, int] = {}
    for instance in config.instances:
        host_bytes = round(instance.host_memory_gib * GIB) if instance.swap_tiers else 0
        memory[instance.kind] = min(host_bytes, memory.get(instance.kind, host_bytes))
        for name in instance.models:
            profile = effective_profile(config, models[name], instance, profiles)
            same = speeds.setdefault((ModelId(name), instance.kind), profile)
            speeds[(ModelId(name), instance.kind)] = min(
                same, profile, key=lambda each: each.batched_tokens_max
            )
            costs.setdefault(instance.kind, {})[ModelId(name)] = _model_cost(profile, instance)
    kinds = {
        accelerator: Kind(host_memory_bytes=memory[accelerator], models=models_cost)
        for accelerator, models_cost in costs.items()
    }
    return Fleet(kinds=kinds, profiles=speeds)


def _model_cost(profile: Profile, instance: InstanceConfig) -> ModelCost:
    """Return the costs of a model for plans.

    Without the pool for KV blocks, which gets the host memory that weights leave (decision 13).
    """
    warm = "warm" in instance.swap_tiers
    return ModelCost(
        weights_bytes=profile.weights_bytes,
        process_bytes=ENGINE_PROCESS_BYTES,
        swap_warm_s=profile.swap_warm_s if warm else profile.swap_cold_s,
        swap_reload_s=profile.swap_reload_s if "reload" in instance.swap_tiers else None,
        swap_cold_s=profile.swap_cold_s,
        unload_s=profile.unload_s,
        kv_tokens=profile.kv_tokens,
    )


def new_request_id() -> RequestId:
    """Return a globally unique request id."""
    return RequestId(f"req-{secrets.token_hex(10)}")


def new_gateway_id() -> GatewayId:
    """Return an id for this gateway process."""
    return GatewayId(f"gw-{secrets.token_hex(6)}")


def new_controller_id() -> ControllerId:
    """Return an id for this controller process; it starts with the host name for operators."""
    return ControllerId(f"{socket.gethostname()}-{secrets.token_hex(3)}")


def new_deployment_id() -> str:
    """Return an id for a deployment that begins."""
    return secrets.token_hex(6)


def group_ids() -> NewGroupId:
    """Return a generator of globally unique group ids."""
    token, numbers = secrets.token_hex(3), itertools.count(1)

    def new_id(cls: RequestClass) -> GroupId:
        return GroupId(f"g-{token}-{next(numbers)}")

    return new_id
