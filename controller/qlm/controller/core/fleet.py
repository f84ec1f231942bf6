"""Configured knowledge of models and accelerators, and what instances can serve."""

from collections.abc import Mapping
from dataclasses import dataclass

from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.ids import ModelId
from qlm.planner.problem import Kind
from qlm.rct_estimator.profiles.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Costs and speeds of the models on the configured kinds of accelerators.

    Attributes:
        kinds: Swap costs of models, by kind of accelerator.
        profiles: Profile of each model on each kind of accelerator.
        bounds_readers: Agents without a batch policy take no more requests beside a reader than the batch
            keeps up with (`rct_estimator.readers`); estimates rely on it.
    """

    kinds: Mapping[str, Kind]
    profiles: Mapping[tuple[ModelId, str], Profile]
    bounds_readers: bool = True


def able_models(status: InstanceStatus) -> frozenset[ModelId]:
    """Return the models that an instance may serve now: all but those whose engine has failed there."""
    return frozenset(status.models) - {model for model, at in status.engines if at is EngineState.FAILED}
