"""How the engines of an instance are started, from the configuration."""

from collections.abc import Callable, Sequence
from pathlib import Path

from qlm.agents.engine_attached import AttachedEngine
from qlm.agents.engine_command import (
    EmulateSettings,
    EngineCommand,
    VllmSettings,
    emulate_command,
    vllm_command,
)
from qlm.agents.engine_host import EngineUnit, ModelHost
from qlm.agents.engine_launched import LaunchedEngine
from qlm.agents.engine_vllm import VllmEngine
from qlm.cli.config import Config, InstanceConfig, ModelConfig
from qlm.cli.wiring import GIB, profile_file, profile_of
from qlm.domain.ids import ModelId
from qlm.rct_estimator.profile import Profile


def model_host(config: Config, instance: InstanceConfig, profiles: Sequence[Profile]) -> ModelHost:
    """Make the host of an instance's engines; nothing is started yet."""
    models = {model.id: model for model in config.models}
    served = {ModelId(name): profile_of(models[name], instance, profiles) for name in instance.models}
    units = {name: _unit(config, instance, models[name], profile) for name, profile in served.items()}
    return ModelHost(
        units,
        weights_bytes={name: profile.weights_bytes for name, profile in served.items()},
        host_memory_bytes=round(instance.host_memory_gib * GIB),
    )


def _unit(
    config: Config,
    instance: InstanceConfig,
    model: ModelConfig,
    profile: Profile,
) -> EngineUnit:
    if instance.url is not None:
        engine = VllmEngine(instance.url, model.id, seqs_max=instance.seqs_max or config.vllm.seqs_max)
        return AttachedEngine(engine, instance.url, ready_timeout_s=config.vllm.ready_timeout_s)
    if model.engine == "emulated":
        seqs_max = instance.seqs_max or profile.seqs_max
        command = _emulated(config, model, instance, seqs_max)
    else:
        seqs_max = instance.seqs_max or config.vllm.seqs_max
        command = _vllm(config, model, instance, seqs_max)
    return LaunchedEngine(
        f"{instance.id}-{model.id}".replace("/", "_"),
        model.id,
        command,
        seqs_max=seqs_max,
        folder=config.data_dir,
        ready_timeout_s=config.vllm.ready_timeout_s,
    )


def _emulated(
    config: Config, model: ModelConfig, instance: InstanceConfig, seqs_max: int
) -> Callable[[int], EngineCommand]:
    file = profile_file(model, instance, config.profiles)

    def command(port: int) -> EngineCommand:
        made = emulate_command(
            EmulateSettings(
                port=port,
                model=None if file else model.profile or model.id,
                accelerator=None if file else instance.accelerator,
                gpus=instance.gpus,
                profile=file,
                served_model_name=model.id,
                time_scale=config.emulate.time_scale,
                seqs_max=seqs_max,
                context_tokens=model.context_tokens,
                mean_output_tokens=config.emulate.mean_output_tokens,
                fixed_ms=config.emulate.fixed_ms,
                cold_start=config.emulate.cold_start,
            )
        )
        return EngineCommand(made.argv, {**made.env, **instance.environment})

    return command


def _vllm(
    config: Config, model: ModelConfig, instance: InstanceConfig, seqs_max: int
) -> Callable[[int], EngineCommand]:
    settings = config.vllm
    patches = {"PYTHONPATH": str(settings.pythonpath.resolve())} if settings.pythonpath else {}

    def command(port: int) -> EngineCommand:
        made = vllm_command(
            VllmSettings(
                model=str(model.path),
                served_model_name=model.id,
                port=port,
                seqs_max=seqs_max,
                context_tokens=model.context_tokens,
                block_tokens=settings.block_tokens,
                kv_cache_bytes=settings.kv_cache_bytes,
                dtype=settings.dtype,
                cpu=settings.cpu,
                program=str(Path(settings.python).with_name("vllm")),
                extra=settings.extra_args,
            )
        )
        return EngineCommand(made.argv, {**made.env, **patches, **instance.environment})

    return command
