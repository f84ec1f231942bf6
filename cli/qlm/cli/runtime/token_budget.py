"""Token budget of an iteration: one value for plans, simulations and engines."""

from dataclasses import replace

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.fleet import InstanceConfig, ModelConfig
from qlm.cli.config.settings import Config
from qlm.rct_estimator.profiles.profile import Profile


def with_token_budget(
    profile: Profile, config: Config, model: ModelConfig, instance: InstanceConfig
) -> Profile:
    """Return the profile with the token budget of the model's engine on an instance.

    That is the configured one, or the profile's, raised to one token for each request of the batch.

    Raises:
        ConfigError: The configured one is smaller than the batch, with which vLLM does not start.
    """
    seqs_max = engine_seqs_max(profile, config, model, instance)
    configured = instance.batched_tokens_max
    if configured is None and not _emulated(model, instance):
        configured = config.vllm.batched_tokens_max
    if configured is not None and configured < seqs_max:
        raise ConfigError(
            f"batched_tokens_max of {model.id} on {instance.id} is {configured}; "
            f"expected at least its seqs_max, {seqs_max}"
        )
    return replace(profile, batched_tokens_max=configured or max(profile.batched_tokens_max, seqs_max))


def engine_seqs_max(profile: Profile, config: Config, model: ModelConfig, instance: InstanceConfig) -> int:
    """Return the batch slots of the model's engine on an instance."""
    default = profile.seqs_max if _emulated(model, instance) else config.vllm.seqs_max
    return instance.seqs_max or default


def _emulated(model: ModelConfig, instance: InstanceConfig) -> bool:
    return model.engine == "emulated" and instance.url is None
