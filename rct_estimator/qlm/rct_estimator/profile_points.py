"""The points behind the fitted coefficients of a profile, stored with it so that the fit can be repeated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profile_fields import check_positive, check_share, mapping_of, number_of


class FitPoint(NamedTuple):
    """One timed iteration.

    Attributes:
        batch: Requests in it.
        tokens: Prompt tokens (prefill) or context tokens (decode) of each.
        ms: Duration, milliseconds.
    """

    batch: float
    tokens: float
    ms: float


@dataclass(frozen=True, slots=True)
class FitPoints:
    """Points of a fit, at least one, with the mean and the largest relative error of the coefficients."""

    points: tuple[FitPoint, ...]
    error_mean: float
    error_max: float

    def __post_init__(self) -> None:
        if not self.points:
            raise InvalidValueError("points", [], "at least one [batch, tokens, ms]")
        for number, point in enumerate(self.points):
            for name, value in zip(point._fields, point, strict=True):
                check_positive(f"points.{number}.{name}", value)
        check_share("error_max", self.error_max)
        if not 0 <= self.error_mean <= self.error_max:
            raise InvalidValueError("error_mean", self.error_mean, f"0 to error_max, {self.error_max}")


def parse_fits(value: object, keys: tuple[str, ...]) -> dict[str, FitPoints]:
    """Read the `fits` of a profile file: points and errors for some of the fitted keys."""
    fits = {}
    for key, plain in mapping_of("fits", value, (), keys).items():
        try:
            fits[key] = _fit_points(plain)
        except InvalidValueError as error:
            raise InvalidValueError(f"fits.{key}.{error.field}", error.value, error.expected) from None
    return fits


def fits_mapping(fits: Mapping[str, FitPoints]) -> dict[str, Any]:
    """Write fits as the plain data that `parse_fits` reads."""
    return {
        key: {
            "points": [list(point) for point in fit.points],
            "error_mean": fit.error_mean,
            "error_max": fit.error_max,
        }
        for key, fit in fits.items()
    }


def _fit_points(value: object) -> FitPoints:
    plain = mapping_of("fit", value, ("points", "error_mean", "error_max"))
    if not isinstance(plain["points"], list):
        raise InvalidValueError("points", plain["points"], "a list of [batch, tokens, ms]")
    points = []
    for number, point in enumerate(plain["points"]):
        if not isinstance(point, list) or len(point) != 3:
            raise InvalidValueError(f"points.{number}", point, "[batch, tokens, ms]")
        points.append(FitPoint(*(number_of(f"points.{number}", part) for part in point)))
    mean, largest = (number_of(name, plain[name]) for name in ("error_mean", "error_max"))
    return FitPoints(tuple(points), mean, largest)
