"""Speed corrections of instances that outlive their agents and the controller."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import InstanceId, ModelId
from qlm.rct_estimator.correction import PRIOR_LOG_SD, Correction

SPEEDS_MAX: Final = 2000
"""Largest number of speeds that are remembered; the oldest go first."""

HALF_LIFE_S: Final = 86_400.0
"""Age at which half of the uncertainty before any observation is back: engines are updated, clocks change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRecord:
    """Speed correction of an instance for a model.

    Attributes:
        at_ns: Time at which the instance was last seen, nanoseconds since the epoch.
        accelerator: Its kind.
    """

    at_ns: int
    accelerator: str
    correction: Correction

    def aged(self, now_ns: int) -> "SpeedRecord":
        """Return the record with the uncertainty of its age."""
        age_s = max(0.0, (now_ns - self.at_ns) / 1e9)
        back = PRIOR_LOG_SD**2 * (1 - 0.5 ** (age_s / HALF_LIFE_S))
        log_var = max(self.correction.log_var, back)
        return replace(self, correction=replace(self.correction, log_var=log_var))


Speeds = Mapping[tuple[InstanceId, ModelId], SpeedRecord]
"""By instance and model."""


def speeds_of(status: InstanceStatus, speeds: Speeds) -> dict[ModelId, Correction]:
    """Return the corrections known of an instance, unless it has changed its accelerator."""
    return {
        model: record.correction
        for model in status.models
        if (record := speeds.get((status.id, model))) is not None and record.accelerator == status.accelerator
    }


def latest(speeds: Speeds) -> Speeds:
    """Return at most `SPEEDS_MAX` records, the latest ones."""
    if len(speeds) <= SPEEDS_MAX:
        return speeds
    return dict(sorted(speeds.items(), key=lambda item: item[1].at_ns)[-SPEEDS_MAX:])


def read_speeds(
    statuses: Iterable[InstanceStatus],
    corrections: Mapping[InstanceId, Mapping[ModelId, Correction]],
    now_ns: int,
    before: Speeds,
) -> Speeds:
    """Return the speeds with those of some instances as they are now.

    Args:
        statuses: Reports of the instances.
        corrections: Their corrections by model.
        now_ns: Time at which they were last seen, nanoseconds since the epoch.
        before: The speeds so far.
    """
    now = {
        (status.id, model): SpeedRecord(at_ns=now_ns, accelerator=status.accelerator, correction=correction)
        for status in statuses
        for model, correction in corrections.get(status.id, {}).items()
    }
    return latest({**before, **now}) if now else before
