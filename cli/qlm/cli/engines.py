"""How the engines of an instance are started, from the configuration."""

from collections.abc import Sequence

from qlm.agents.engine_attached import AttachedEngine
from qlm.agents.engine_host import EngineUnit, ModelHost
from qlm.agents.engine_vllm import VllmEngine
from qlm.cli.config import Config, InstanceConfig
from qlm.cli.wiring import GIB, profile_of
from qlm.domain.ids import ModelId
from qlm.rct_estimator.profile import Profile


def model_host(config: Config, instance: InstanceConfig, profiles: Sequence[Profile]) -> ModelHost:
    """Make the host of an instance's engines; nothing is started yet."""
    models = {model.id: model for model in config.models}
    weights = {
        ModelId(name): profile_of(models[name], instance.accelerator, profiles).weights_bytes
        for name in instance.models
    }
    return ModelHost(
        {ModelId(name): _unit(config, instance, name) for name in instance.models},
        weights_bytes=weights,
        host_memory_bytes=round(instance.host_memory_gib * GIB),
    )


def _unit(config: Config, instance: InstanceConfig, name: str) -> EngineUnit:
    engine = VllmEngine(instance.url, name, seqs_max=instance.seqs_max or config.vllm.seqs_max)
    return AttachedEngine(engine, instance.url, ready_timeout_s=config.vllm.ready_timeout_s)
