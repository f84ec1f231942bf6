"""Composition: configuration in, running components out. Nothing here decides anything."""

import itertools
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from qlm.agents.protocol import AgentSettings
from qlm.cli.config import Config, InstanceConfig, ModelConfig
from qlm.cli.config_errors import ConfigError
from qlm.cli.config_grpc import read_tls
from qlm.controller.fleet import Fleet
from qlm.controller.grouping import NewGroupId
from qlm.controller.protocol import ControllerSettings
from qlm.domain.errors import InvalidValueError
from qlm.domain.fleet import ModelSpec
from qlm.domain.group import RequestClass
from qlm.domain.ids import ControllerId, GatewayId, GroupId, ModelId, RequestId
from qlm.gateway.limits import GatewayLimits
from qlm.planner.problem import Kind, ModelCost
from qlm.rct_estimator.builtin import builtin_profiles
from qlm.rct_estimator.profile import Profile, parse_profile_text
from qlm.rct_estimator.unmeasured import unmeasured_profile

GIB = 1024**3

CUSTODY_SHARE: Final = 1 / 3
"""Of the broker's acknowledgement timeout: custody is renewed well before half of it has passed."""


def model_specs(config: Config) -> tuple[ModelSpec, ...]:
    """List the served models with their tokenizers."""
    return tuple(
        ModelSpec(
            id=ModelId(model.id),
            tokenizer="byte" if model.engine == "emulated" else str(model.path),
            context_tokens=model.context_tokens,
        )
        for model in config.models
    )


def check(config: Config, where: str) -> None:
    """Check what only the file system and the profiles can tell.

    Raises:
        ConfigError: A model's folder has no tokenizer, or an emulated model no profile.
    """
    try:
        for model in config.models:
            if model.path is not None and not (model.path / "tokenizer.json").is_file():
                raise ConfigError(
                    f"models has {model.id!r} with the path {str(model.path)!r}; "
                    "expected a folder with weights and tokenizer.json"
                )
        fleet(config, load_profiles(config.profiles))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def check_doors(config: Config, where: str) -> None:
    """Check what only a gateway needs.

    Raises:
        ConfigError: The certificate of its gRPC door cannot be used.
    """
    if config.grpc.port:
        try:
            read_tls(config.grpc)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error


def gateway_limits(config: Config) -> GatewayLimits:
    """Turn the configured limits into those of the gateway."""
    return GatewayLimits(
        default_slo=config.default_slo.slo(),
        interactive_slo=config.interactive_slo.slo(),
        queue_depth_max=config.limits.queue_depth_max,
        p_met_min=config.limits.p_met_min,
        retry_after_max_s=config.limits.retry_after_max_s,
        body_bytes_max=config.limits.body_bytes_max,
        max_tokens_default=config.limits.default_max_tokens,
    )


def agent_settings(config: Config) -> AgentSettings:
    """Turn what is configured about agents into their settings."""
    used = config.operations
    return AgentSettings(
        custody_s=config.broker_ack_timeout_s * CUSTODY_SHARE,
        evicts=used.evict,
        demotes=used.demote,
        limits_batch=used.limit_batch,
        warms_ahead=used.warm_ahead,
    )


def controller_settings(config: Config) -> ControllerSettings:
    """Turn the operations that are used into settings of the controller."""
    used = config.operations
    return ControllerSettings(demotes=used.demote, stays=True, balances=used.balance)


def profile_file(model: ModelConfig, instance: InstanceConfig, folders: Sequence[Path]) -> Path | None:
    """Find the file of a profile that is not a shipped one; None if a shipped one is used."""
    wanted = (model.profile or model.id, instance.accelerator, instance.gpus)
    for folder in reversed(folders):
        for file in sorted(folder.glob("*.yaml")):
            profile = parse_profile_text(file.read_text("utf-8"), str(file))
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
                profile = parse_profile_text(file.read_text("utf-8"), str(file))
            except InvalidValueError as error:
                raise ConfigError(str(error)) from error
            profiles[(profile.model, profile.accelerator, profile.gpus)] = profile
    return tuple(profiles.values())


def profile_of(model: ModelConfig, instance: InstanceConfig, profiles: Sequence[Profile]) -> Profile:
    """Return the profile of a model on an instance's accelerators, or a guess that says it is one.

    Raises:
        ConfigError: An emulated model has no profile there: it has no speed to emulate.
    """
    name, kind = model.profile or model.id, instance.kind
    for profile in profiles:
        if (profile.model, profile.accelerator, profile.gpus) == (name, instance.accelerator, instance.gpus):
            return profile
    if model.engine == "emulated":
        known = sorted(f"{p.accelerator} with gpus {p.gpus}" for p in profiles if p.model == name)
        raise ConfigError(
            f"models has {model.id!r} to be emulated on {kind!r}, which has no profile; expected "
            + (f"one of the accelerators {', '.join(known)}" if known else f"a model of {_models(profiles)}")
        )
    return unmeasured_profile(name, instance.accelerator, context_tokens=model.context_tokens)


def fleet(config: Config, profiles: Sequence[Profile]) -> Fleet:
    """Tell the controller what models cost and how fast they run on each kind of accelerator."""
    models = {model.id: model for model in config.models}
    costs: dict[str, dict[ModelId, ModelCost]] = {}
    speeds: dict[tuple[ModelId, str], Profile] = {}
    memory: dict[str, int] = {}
    for instance in config.instances:
        host_bytes = round(instance.host_memory_gib * GIB)
        memory[instance.kind] = min(host_bytes, memory.get(instance.kind, host_bytes))
        for name in instance.models:
            profile = profile_of(models[name], instance, profiles)
            speeds[(ModelId(name), instance.kind)] = profile
            costs.setdefault(instance.kind, {})[ModelId(name)] = ModelCost(
                weights_bytes=profile.weights_bytes,
                swap_warm_s=profile.swap_warm_s,
                swap_cold_s=profile.swap_cold_s,
                unload_s=profile.unload_s,
            )
    kinds = {
        accelerator: Kind(host_memory_bytes=memory[accelerator], models=models_cost)
        for accelerator, models_cost in costs.items()
    }
    return Fleet(kinds=kinds, profiles=speeds)


def new_request_id() -> RequestId:
    """Make a request id that no other gateway makes."""
    return RequestId(f"req-{secrets.token_hex(10)}")


def new_gateway_id() -> GatewayId:
    """Make the id of this gateway process."""
    return GatewayId(f"gw-{secrets.token_hex(6)}")


def new_controller_id() -> ControllerId:
    """Make the id of this controller process; it tells operators where it runs."""
    return ControllerId(f"{socket.gethostname()}-{secrets.token_hex(3)}")


def group_ids() -> NewGroupId:
    """Return a maker of group ids that no other controller process repeats."""
    token, numbers = secrets.token_hex(3), itertools.count(1)

    def new_id(cls: RequestClass) -> GroupId:
        return GroupId(f"g-{token}-{next(numbers)}")

    return new_id


def _models(profiles: Sequence[Profile]) -> str:
    return ", ".join(sorted({p.model for p in profiles}))
