"""The points behind the fitted coefficients of a profile, stored with it so that the fit can be repeated."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.fields import check_positive, check_share, mapping_of, number_of, text_of
from qlm.rct_estimator.profiles.iteration import IterationTime, pairs_of

_ROW = "[prompts, new, position, decodes, context, ms]"


class FitPoint(NamedTuple):
    """One timed iteration: equal chunks of prompts, and decodes of equal context.

    Attributes:
        prompts: Prompts with a chunk in it.
        new: Tokens of each chunk.
        position: Tokens before each chunk.
        decodes: Requests that get one more token.
        context: Context of each of them, tokens.
        ms: Duration, milliseconds.
    """

    prompts: float
    new: float
    position: float
    decodes: float
    context: float
    ms: float

    @property
    def tokens(self) -> float:
        """All tokens computed."""
        return self.prompts * self.new + self.decodes

    @property
    def sequences(self) -> float:
        """Prompts and decodes."""
        return self.prompts + self.decodes

    @property
    def pairs(self) -> float:
        """Pairs of tokens that its chunks compare."""
        return self.prompts * pairs_of(self.new, self.position)

    @property
    def admissions(self) -> float:
        """Requests that it admits: those whose first chunk it computes."""
        return 0.0 if self.position else self.prompts

    def predicted_ms(self, iteration: IterationTime) -> float:
        """Return the duration that these coefficients give, milliseconds."""
        return iteration.ms(
            tokens=self.tokens,
            context_tokens=self.decodes * self.context,
            sequences=self.sequences,
            pairs=self.pairs,
            admitted=self.admissions,
            mixed=self.prompts > 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPoints:
    """Points of a fit, at least one, and how well the coefficients meet them.

    Attributes:
        points: Timed iterations, those held out included.
        error_mean: Mean relative error at the points of the fit.
        error_max: Largest relative error at these points.
        held_out_mean: Mean relative error at points that the fit did not see; None without any.
        held_out_max: Largest relative error at those.
        unidentified: Coefficients that the points do not tell apart from others; their values are
            conventions.
    """

    points: tuple[FitPoint, ...]
    error_mean: float
    error_max: float
    held_out_mean: float | None = None
    held_out_max: float | None = None
    unidentified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.points:
            raise InvalidValueError("points", [], f"at least one {_ROW}")
        for number, point in enumerate(self.points):
            for name, value in zip(point._fields, point, strict=True):
                check_positive(f"points.{number}.{name}", value, zero=name != "ms")
            check_positive(f"points.{number}", point.tokens)
        for mean, largest in (("error_mean", "error_max"), ("held_out_mean", "held_out_max")):
            self._check_errors(mean, largest)

    def _check_errors(self, mean: str, largest: str) -> None:
        low, high = getattr(self, mean), getattr(self, largest)
        if low is None and high is None:
            return
        if low is None or high is None:
            raise InvalidValueError(mean, low, f"given together with {largest}")
        check_share(largest, high)
        if not 0 <= low <= high:
            raise InvalidValueError(mean, low, f"0 to {largest}, {high}")

    @property
    def tokens_max(self) -> float:
        """Most tokens of an iteration that was timed; beyond it the linear term is extrapolated."""
        return max(point.tokens for point in self.points)

    @property
    def sequences_max(self) -> float:
        """Largest batch that was timed."""
        return max(point.sequences for point in self.points)

    @property
    def context_max(self) -> float:
        """Longest text that was timed, tokens."""
        return max(max(p.context, p.position + p.new) for p in self.points)


def errors(iteration: IterationTime, points: Iterable[FitPoint]) -> tuple[float, float]:
    """Return the mean and the largest relative error of coefficients at the points."""
    each = [abs(point.predicted_ms(iteration) / point.ms - 1) for point in points]
    return sum(each) / len(each), max(each)


def parse_fit(value: object) -> FitPoints:
    """Read the `fit` of a profile file."""
    try:
        return _fit_points(value)
    except InvalidValueError as error:
        raise InvalidValueError(f"fit.{error.field}", error.value, error.expected) from None


def parse_fits_of_version_1(value: object, keys: tuple[str, str]) -> FitPoints | None:
    """Read the `fits` of a file of version 1: points [batch, tokens, ms] of prefill and of decode."""
    plain, points, errors_max = mapping_of("fits", value, (), keys), [], []
    for key, each in plain.items():
        fit = mapping_of(f"fits.{key}", each, ("points", "error_mean", "error_max"))
        errors_max.append(number_of(f"fits.{key}.error_max", fit["error_max"]))
        for number, row in enumerate(_rows(f"fits.{key}.points", fit["points"], 3, "[batch, tokens, ms]")):
            batch, tokens, ms = row
            for name, part in zip(("batch", "tokens", "ms"), row, strict=True):
                check_positive(f"fits.{key}.points.{number}.{name}", part)
            points.append(
                FitPoint(batch, tokens, 0, 0, 0, ms)
                if key == keys[0]
                else FitPoint(0, 0, 0, batch, tokens, ms)
            )
    if not points:
        return None
    means = [number_of(f"fits.{key}.error_mean", each["error_mean"]) for key, each in plain.items()]
    return FitPoints(points=tuple(points), error_mean=max(means), error_max=max(errors_max))


def fit_mapping(fit: FitPoints) -> dict[str, Any]:
    """Write a fit as the plain data that `parse_fit` reads."""
    plain: dict[str, Any] = {"points": [list(point) for point in fit.points]}
    plain |= {f.name: getattr(fit, f.name) for f in fields(fit) if f.name not in ("points", "unidentified")}
    plain["unidentified"] = list(fit.unidentified)
    return {name: value for name, value in plain.items() if value is not None and value != []}


def _fit_points(value: object) -> FitPoints:
    optional = ("held_out_mean", "held_out_max", "unidentified")
    plain: Mapping[str, Any] = mapping_of("fit", value, ("points", "error_mean", "error_max"), optional)
    points = (FitPoint(*row) for row in _rows("points", plain["points"], 6, _ROW))
    numbers = {name: number_of(name, plain[name]) for name in plain if name not in ("points", "unidentified")}
    names = plain.get("unidentified", [])
    if not isinstance(names, list):
        raise InvalidValueError("unidentified", names, "a list of coefficients")
    return FitPoints(
        points=tuple(points),
        unidentified=tuple(text_of("unidentified", name) for name in names),
        **numbers,
    )


def _rows(field: str, value: object, length: int, expected: str) -> list[list[float]]:
    if not isinstance(value, list):
        raise InvalidValueError(field, value, f"a list of {expected}")
    rows = []
    for number, row in enumerate(value):
        if not isinstance(row, list) or len(row) != length:
            raise InvalidValueError(f"{field}.{number}", row, expected)
        rows.append([number_of(f"{field}.{number}", part) for part in row])
    return rows
