"""Engine hosts, operation costs and the hosted batch policy of an instance, from the configuration."""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.guarded import guarded_policy
from qlm.agents.core.costs.engine_speed import EngineSpeed
from qlm.agents.core.costs.kv_offload import KvSwapCost, host_kv_bytes, host_kv_pools
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.engines.attached import AttachedEngine
from qlm.agents.engines.command import (
    EmulateSettings,
    EngineCommand,
    VllmScheduling,
    VllmSettings,
    emulate_command,
    vllm_command,
)
from qlm.agents.engines.launched import LaunchedEngine
from qlm.agents.engines.model_host import ManagedEngine, ModelHost
from qlm.agents.engines.page_cache import EmulatedWeights, PageCachedWeights, WeightsCache
from qlm.agents.engines.scheduler_path import scheduler_path
from qlm.agents.engines.vllm.client import VllmEngine
from qlm.agents.vllm_scheduler.settings import SchedulerSettings
from qlm.cli.config.fleet import InstanceConfig, ModelConfig
from qlm.cli.config.settings import Config
from qlm.cli.rendering.parsers import engine_args
from qlm.cli.runtime.token_budget import engine_seqs_max
from qlm.cli.runtime.wiring import GIB, effective_profile, launched_adapters, profile_file
from qlm.domain.ids import ModelId
from qlm.domain.operations import SwapTier
from qlm.domain.shell.faults import FaultLog
from qlm.gateway.http.connections.descriptors import allow_descriptors
from qlm.rct_estimator.host_memory import SwapCost
from qlm.rct_estimator.profiles.file import profile_text
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.roofline.profile import ENGINE as ROOFLINE_ENGINE

log = logging.getLogger("qlm.cli")

OWN_FILES: Final = 256
"""Descriptors of an agent's process besides the connections of its generations."""


def model_host(
    config: Config,
    instance: InstanceConfig,
    profiles: Sequence[Profile],
    withheld: Collection[str] = (),
    faults: FaultLog | None = None,
) -> ModelHost:
    """Return the host of an instance's engines, without starting any.

    Args:
        config: The configuration.
        instance: The instance.
        profiles: All profiles.
        withheld: Names of variables that its engines do not inherit.
        faults: Failures of the process.
    """
    models = {model.id: model for model in config.models}
    served = _served(config, instance, profiles)
    pools = _host_kv_pools(config, instance, served)
    _warn_of_small_pools(instance, _host_kv_wanted(config, instance, served), pools)
    seqs_max = max(engine_seqs_max(each, config, models[name], instance) for name, each in served.items())
    _allow_generations(instance, seqs_max)
    units = {
        name: _unit(config, instance, models[name], profile, pools[name], withheld)
        for name, profile in served.items()
    }
    costs = operation_costs(config, instance, profiles)
    return ModelHost(
        units,
        costs=costs.swap,
        host_memory_bytes=costs.host_memory_bytes,
        tiers=[SwapTier(tier) for tier in instance.swap_tiers],
        faults=faults,
    )


def _allow_generations(instance: InstanceConfig, seqs_max: int) -> None:
    """Let the process open a connection for each generation, those that end included; warn if it may not."""
    wanted = OWN_FILES + 2 * seqs_max
    if (allowed := allow_descriptors(wanted)) < wanted:
        log.warning(
            "%s runs up to %d requests at a time, with a connection for each, and this process may open %d "
            "files; set LimitNOFILE=%d in its unit, or run it after `ulimit -n %d`",
            *(instance.id, seqs_max, allowed, wanted, wanted),
        )


async def hosted_policy(instance: InstanceConfig) -> Callable[[], BatchPolicy] | None:
    """Return what makes the batch policy of an agent that hosts it, compiled; None where engines do."""
    if instance.batching is None or instance.batching_by == "engine":
        return None
    new_policy = partial(guarded_policy, instance.batching, log.exception)
    await asyncio.to_thread(new_policy)  # it may compile for seconds, once in a process
    return new_policy


def operation_costs(config: Config, instance: InstanceConfig, profiles: Sequence[Profile]) -> OperationCosts:
    """Return the costs of operations on an instance."""
    served = _served(config, instance, profiles)
    pools = _host_kv_pools(config, instance, served)
    return OperationCosts(
        swap={name: SwapCost.of(served[name], host_kv_bytes=size) for name, size in pools.items()},
        kv={name: KvSwapCost.of(served[name], size) for name, size in pools.items()},
        speed={name: _speed(config, name, instance, profile) for name, profile in served.items()},
        profiles={
            name: _in_real_time(config, name, instance, profile)
            for name, profile in served.items()
            if config.emulate.fixed_ms is None or not _is_emulated(config, name, instance)
        },
        host_memory_bytes=round(instance.host_memory_gib * GIB),
    )


def _speed(config: Config, name: ModelId, instance: InstanceConfig, profile: Profile) -> EngineSpeed:
    if not _is_emulated(config, name, instance):
        return EngineSpeed.of(profile)
    answer_s = (config.emulate.fixed_ms or 0.0) / 1000
    return EngineSpeed.of(profile, time_scale=config.emulate.time_scale, answer_s=answer_s)


def _in_real_time(config: Config, name: ModelId, instance: InstanceConfig, profile: Profile) -> Profile:
    """Return a profile with the durations that the clock of an agent sees."""
    if not _is_emulated(config, name, instance):
        return profile
    iteration = profile.iteration.scaled(config.emulate.time_scale)
    return replace(profile, iteration=iteration)


def _is_emulated(config: Config, name: ModelId, instance: InstanceConfig) -> bool:
    return instance.url is None and any(m.id == name and m.engine == "emulated" for m in config.models)


def _served(config: Config, instance: InstanceConfig, profiles: Sequence[Profile]) -> dict[ModelId, Profile]:
    models = {model.id: model for model in config.models}
    return {
        ModelId(name): effective_profile(config, models[name], instance, profiles) for name in instance.models
    }


def _host_kv_pools(
    config: Config, instance: InstanceConfig, served: Mapping[ModelId, Profile]
) -> dict[ModelId, int]:
    """Return the host memory for KV blocks of each engine, bytes."""
    return host_kv_pools(
        served,
        _host_kv_wanted(config, instance, served),
        round(instance.host_memory_gib * GIB),
        [SwapTier(tier) for tier in instance.swap_tiers],
    )


def _host_kv_wanted(
    config: Config, instance: InstanceConfig, served: Mapping[ModelId, Profile]
) -> dict[ModelId, int]:
    """Return the configured host memory for KV blocks, bytes; 0 for attached engines."""
    swaps = {
        model.id
        for model in config.models
        if model.kv_swap != "never" and instance.url is None and _may_offload(config, instance, model)
    }
    size_bytes = round(instance.host_kv_gib * GIB)
    return {name: host_kv_bytes(each, size_bytes) if name in swaps else 0 for name, each in served.items()}


def _may_offload(config: Config, instance: InstanceConfig, model: ModelConfig) -> bool:
    """Return False for a vLLM with QLM's scheduler: with offloading it is not verified, unless asked for."""
    with_scheduler = instance.engine_batching is not None and model.engine == "vllm"
    return not with_scheduler or config.vllm.batching_offloading


def _warn_of_small_pools(
    instance: InstanceConfig, wanted: Mapping[ModelId, int], pools: Mapping[ModelId, int]
) -> None:
    short = [name for name, size_bytes in wanted.items() if pools[name] < size_bytes]
    if short:
        log.warning(
            "%s: host_kv_gib is %g, and weights of sleeping models leave %.3g GiB of the %g GiB of "
            "host_memory_gib for the KV blocks of %s",
            *(instance.id, instance.host_kv_gib, pools[short[0]] / GIB, instance.host_memory_gib),
            "each engine" if len(short) > 1 else short[0],
        )


def _unit(
    config: Config,
    instance: InstanceConfig,
    model: ModelConfig,
    profile: Profile,
    kv_bytes: int,
    withheld: Collection[str],
) -> ManagedEngine:
    seqs_max = engine_seqs_max(profile, config, model, instance)
    if instance.url is not None:
        engine = VllmEngine(
            instance.url,
            model.id,
            seqs_max=seqs_max,
            batched_tokens_expected=profile.batched_tokens_max,
            sends_objectives=instance.engine_batching is not None,
        )
        return AttachedEngine(
            engine,
            instance.url,
            context_tokens=model.context_tokens,
            ready_timeout_s=config.vllm.ready_timeout_s,
        )
    name = f"{instance.id}-{model.id}".replace("/", "_")
    weights: WeightsCache | None = None
    if model.engine == "emulated":
        # One marker per agent process: a killed one leaves its marker behind.
        marker = config.data_dir / "page-cache" / f"{name}-{os.getpid()}"
        command = _emulated(config, model, instance, profile, marker, kv_bytes)
        weights = EmulatedWeights(marker, profile.swap_reload_s * config.emulate.time_scale)
    else:
        command = _vllm(config, model, instance, profile, kv_bytes)
        if model.path is not None:
            weights = PageCachedWeights(model.path)
    return LaunchedEngine(
        name,
        model.id,
        command,
        seqs_max=seqs_max,
        batched_tokens_max=profile.batched_tokens_max,
        folder=config.data_dir,
        ready_timeout_s=config.vllm.ready_timeout_s,
        weights=weights,
        sends_objectives=instance.engine_batching is not None,
        withheld=withheld,
    )


def _emulated(
    config: Config,
    model: ModelConfig,
    instance: InstanceConfig,
    profile: Profile,
    marker: Path,
    kv_bytes: int,
) -> Callable[[int], EngineCommand]:
    own = profile_file(model, instance, config.profiles)

    def command(port: int) -> EngineCommand:
        file = own
        if own is None and profile.engine == ROOFLINE_ENGINE:  # computed, so that there is no file yet
            file = config.data_dir / "profiles" / f"{instance.id}-{model.id}.yaml".replace("/", "_")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(profile_text(profile), "utf-8")
        made = emulate_command(
            EmulateSettings(
                port=port,
                model=None if file else model.profile or model.id,
                accelerator=None if file else instance.accelerator,
                gpus=instance.gpus,
                profile=file,
                served_model_name=model.id,
                adapters=tuple(each.id for each in model.adapters),
                time_scale=config.emulate.time_scale,
                seqs_max=engine_seqs_max(profile, config, model, instance),
                batched_tokens_max=profile.batched_tokens_max,
                context_tokens=model.context_tokens,
                mean_output_tokens=config.emulate.mean_output_tokens,
                fixed_ms=config.emulate.fixed_ms,
                async_scheduling=config.emulate.async_scheduling,
                cold_start=config.emulate.cold_start,
                page_cache_marker=marker.resolve(),
                host_kv_bytes=kv_bytes,
                batching=instance.engine_batching,
                otlp_traces_endpoint=config.tracing.traces_endpoint,
            )
        )
        return EngineCommand(made.argv, {**made.env, **instance.environment})

    return command


def _vllm(
    config: Config, model: ModelConfig, instance: InstanceConfig, profile: Profile, kv_bytes: int
) -> Callable[[int], EngineCommand]:
    settings = config.vllm

    def command(port: int) -> EngineCommand:
        made = vllm_command(
            VllmSettings(
                model=str(model.path),
                served_model_name=model.id,
                port=port,
                seqs_max=engine_seqs_max(profile, config, model, instance),
                batched_tokens_max=profile.batched_tokens_max,
                gpus=instance.gpus,
                context_tokens=model.context_tokens,
                block_tokens=settings.block_tokens,
                kv_cache_bytes=instance.kv_cache_bytes or settings.kv_cache_bytes,
                dtype=settings.dtype,
                generation_config=model.generation_config,
                host_kv_bytes=kv_bytes,
                cpu=settings.cpu,
                program=str(Path(settings.python).with_name("vllm")),
                extra=(*settings.extra_args, *engine_args(model.render)),
                otlp_traces_endpoint=config.tracing.traces_endpoint,
                scheduling=_scheduling(config, instance, profile),
                adapters=launched_adapters(model),
            )
        )
        patches = {"PYTHONPATH": str(settings.pythonpath.resolve())} if settings.pythonpath else {}
        return EngineCommand(made.argv, merged_environment(patches, made.env, instance.environment))

    return command


def merged_environment(*environments: Mapping[str, str]) -> dict[str, str]:
    """Return all variables, the last value of each; entries of PYTHONPATH are joined, the first ones first.

    An instance's own PYTHONPATH would hide the folder from which vLLM imports QLM's scheduler.
    """
    merged = {name: value for each in environments for name, value in each.items()}
    if folders := [each["PYTHONPATH"] for each in environments if "PYTHONPATH" in each]:
        merged["PYTHONPATH"] = os.pathsep.join(folders)
    return merged


def _scheduling(config: Config, instance: InstanceConfig, profile: Profile) -> VllmScheduling | None:
    """Return QLM's scheduler for the vLLM engines of an instance; None for vLLM's own."""
    if instance.engine_batching is None:
        return None
    return VllmScheduling(
        settings=SchedulerSettings(
            instance.engine_batching, profile.iteration, profile.host_bandwidth_bytes_per_s
        ),
        import_path=scheduler_path(config.data_dir),
        async_scheduling=config.vllm.batching_async,
    )
