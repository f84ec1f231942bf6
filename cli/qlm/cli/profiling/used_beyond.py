"""Profiles that a configuration or a scenario uses beyond what was timed for them."""

from collections.abc import Iterable
from dataclasses import replace

from qlm.cli.config.settings import Config
from qlm.cli.runtime.wiring import effective_profile, load_profiles
from qlm.rct_estimator.profiles.beyond import beyond_fit
from qlm.rct_estimator.profiles.profile import Profile


def lines_of_profiles(profiles: Iterable[Profile]) -> tuple[str, ...]:
    """Return the lines of all profiles, each line once."""
    return tuple(dict.fromkeys(line for profile in profiles for line in beyond_fit(profile)))


def lines_of_config(config: Config) -> tuple[str, ...]:
    """Return the lines of the profiles by which a configuration's models are planned.

    Raises:
        ConfigError: A profile cannot be read.
    """
    profiles = load_profiles(config.profiles)
    models = {model.id: model for model in config.models}
    used = []
    for instance in config.instances:
        for name in instance.models:
            model = models[name]
            profile = effective_profile(config, model, instance, profiles)
            emulated = model.engine == "emulated"
            seqs_max = instance.seqs_max or (profile.seqs_max if emulated else config.vllm.seqs_max)
            context_tokens = min(model.context_tokens, profile.context_tokens)
            used.append(replace(profile, seqs_max=seqs_max, context_tokens=context_tokens))
    return lines_of_profiles(used)
