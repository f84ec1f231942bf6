"""What the controller knows about models and accelerators besides what agents say."""

from collections.abc import Mapping
from dataclasses import dataclass

from qlm.domain.ids import ModelId
from qlm.planner.problem import Kind
from qlm.rct_estimator.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What there may be to serve with.

    Attributes:
        kinds: Cost of models per kind of accelerator.
        profiles: How fast each model runs on each kind of accelerator.
    """

    kinds: Mapping[str, Kind]
    profiles: Mapping[tuple[ModelId, str], Profile]
