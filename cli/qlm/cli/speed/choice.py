"""Choice of the profile of a model on an instance."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.fleet import InstanceConfig, ModelConfig
from qlm.cli.speed.model_config import config_file, read_architecture
from qlm.domain.errors import InvalidValueError
from qlm.gateway.api.suggestions import meant
from qlm.rct_estimator.profiles.accelerators import accelerator_of
from qlm.rct_estimator.profiles.builtin import unmeasured_profile
from qlm.rct_estimator.profiles.profile import Profile
from qlm.rct_estimator.roofline.profile import ENGINE, roofline_profile

log = logging.getLogger("qlm.cli")


class Basis(StrEnum):
    """Where the profile of a model comes from."""

    MEASURED = "measured"
    """A profile file, shipped or of one's own."""
    ROOFLINE = "roofline"
    """Computed from the model's config.json and the accelerator's data sheet, now or by `qlm roofline`."""
    GUESSED = "guessed"
    """Neither: a fixed guess, off by a factor of two and more."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Profile of a model on an instance, and why it is this one.

    Attributes:
        profile: The profile.
        basis: Where it comes from.
        reason: What is behind it, in a few words.
        warning: What is wrong with it, in one sentence; empty if nothing is.
    """

    profile: Profile
    basis: Basis
    reason: str
    warning: str = ""


def choose(model: ModelConfig, instance: InstanceConfig, profiles: Sequence[Profile]) -> Choice:
    """Choose the profile of a model: from a file, else computed from its config.json, else a guess.

    Raises:
        ConfigError: `config` names a file that cannot be used, or an emulated model has neither a profile
            nor a configuration that gives one, so that its speed is unknown.
    """
    name = model.profile or model.id
    for profile in profiles:
        if (profile.model, profile.accelerator, profile.gpus) == (name, instance.accelerator, instance.gpus):
            return _of_file(model, profile)
    file = config_file(model)
    if file is None:
        return _guess(model, instance, profiles, "it has no profile and no config.json")
    try:
        architecture = read_architecture(file)
    except InvalidValueError as error:
        if model.config is not None:
            raise ConfigError(f"models has {model.id!r}, whose config cannot be used: {error}") from error
        return _guess(model, instance, profiles, f"its config.json cannot be used: {error}")
    try:
        made = roofline_profile(
            architecture,
            model=name,
            accelerator=accelerator_of(instance.accelerator),
            name=instance.accelerator,
            gpus=instance.gpus,
            context_tokens=model.context_tokens if model.engine == "vllm" else None,
        )
    except InvalidValueError as error:
        return _guess(model, instance, profiles, f"its config.json gives no profile: {error}")
    within = made.sources["linear_ms"].uncertainty or 0.0
    return Choice(made, Basis.ROOFLINE, f"computed from {file}, iterations within {within:.0%}")


def warn_of_profiles(
    models: Iterable[ModelConfig], instances: Iterable[InstanceConfig], profiles: Sequence[Profile]
) -> None:
    """Log the defects of the profiles of models on instances, each once."""
    by_id = {model.id: model for model in models}
    served = (choose(by_id[name], instance, profiles) for instance in instances for name in instance.models)
    for warning in dict.fromkeys(choice.warning for choice in served if choice.warning):
        log.warning("%s", warning)


def _of_file(model: ModelConfig, profile: Profile) -> Choice:
    kinds = {str(source.kind) for name, source in profile.sources.items() if name == "linear_ms"}
    reason = f"profile of {profile.model}, {', '.join(sorted(kinds)) or 'given'}"
    basis = Basis.ROOFLINE if profile.engine == ENGINE else Basis.MEASURED
    return Choice(profile, basis, reason, _other_kv(model, profile))


def _other_kv(model: ModelConfig, profile: Profile) -> str:
    """Compare the KV bytes of a model with those of the profile it borrows, if its config.json is known."""
    file = config_file(model)
    if file is None or model.profile in (None, model.id):
        return ""
    try:
        own = read_architecture(file).kv_bytes_per_token(profile.gpus)
    except InvalidValueError:
        return ""
    if own == profile.kv_bytes_per_token:
        return ""
    return (
        f"{model.id} takes {own} bytes of KV cache per token, but the profile {profile.model} that it uses "
        f"says {profile.kv_bytes_per_token}: leave out `profile`, or measure one of its own"
    )


def _guess(model: ModelConfig, instance: InstanceConfig, profiles: Sequence[Profile], why: str) -> Choice:
    name, kind = model.profile or model.id, instance.kind
    if model.engine == "emulated":
        if config_file(model) is not None:
            raise ConfigError(f"models has {model.id!r} to be emulated on {kind!r}, but {why}")
        raise ConfigError(
            f"models has {model.id!r} to be emulated by {instance.id} on {kind!r}, "
            f"which has no profile; expected {_with_profile(name, instance, profiles)}"
        )
    warning = (
        f"{model.id} is planned with a guess on {kind}, off by a factor of two or more, since {why}; "
        "`qlm profile` measures one"
    )
    guess = unmeasured_profile(name, instance.accelerator, context_tokens=model.context_tokens)
    return Choice(guess, Basis.GUESSED, why, warning)


def _with_profile(name: str, instance: InstanceConfig, profiles: Sequence[Profile]) -> str:
    """Say what has a profile: accelerators for a model that has some, else models."""
    or_config = ", or the key config with its config.json"
    there = sorted((p.accelerator, p.gpus) for p in profiles if p.model == name)
    if there:
        listed = ", ".join(f"{accelerator} with gpus {gpus}" for accelerator, gpus in there)
        kinds = {kind for kind, _ in there}
        like = "" if instance.accelerator in kinds else meant(instance.accelerator, kinds)
        return f"one of the accelerators {listed}{or_config}{like}"
    models = sorted({p.model for p in profiles})
    return f"a model of {', '.join(models)}{or_config}{meant(name, models)}"
