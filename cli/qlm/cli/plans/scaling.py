"""Formats what one more instance of each kind would change, and the fewest that would repair the misses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from qlm.cli.inspect import render
from qlm.cli.inspect.layout import Table
from qlm.cli.plans.tables import count, percent, price
from qlm.planner.policy.one_more import FleetForecast
from qlm.planner.problem import Problem, ScaleUp

KINDS_MAX: Final = 20
"""Most kinds of which one more instance is tried."""

LATE_MIN: Final = 0.5
"""Fewer late requests than this are none."""

ASSUMED: Final = (
    "Each fleet is planned by the plan generator, from the present plan on.",
    "Times count from now, for the requests that wait now: later ones would use a new instance, too.",
    "A new instance is ready and idle; the models that fit sleep in its host memory.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingUp:
    """Effects of more instances.

    Attributes:
        forecasts: That of the present fleet, then of it with one more instance of each kind.
        fewest: The fewest instances whose addition would repair the misses.
        saved_requests: Late requests of the present fleet that these are expected to save.
        names: Short names of the kinds.
        untried: Number of kinds beyond `KINDS_MAX`.
    """

    forecasts: Sequence[FleetForecast]
    fewest: tuple[ScaleUp, ...]
    names: Mapping[str, str]
    saved_requests: float
    untried: int = 0

    def plain(self) -> dict[str, Any]:
        """Write it as JSON; kinds have their short names."""
        return {
            "present": self._plain(self.forecasts[0]),
            "one_more": [self._plain(each) for each in self.forecasts[1:]],
            "fewest": [{"kind": self.names[each.kind], "count": each.count} for each in self.fewest],
            "saved_requests": self.saved_requests,
        }

    def _plain(self, forecast: FleetForecast) -> dict[str, Any]:
        return asdict(forecast) | ({} if forecast.kind is None else {"kind": self.names[forecast.kind]})


def scaling_lines(problem: Problem, scaling: ScalingUp) -> Iterator[Table | str]:
    """Yield a table of the forecasts, and sentences about the fewest instances."""
    has_deadlines = any(group.deadline_s is not None for group in problem.groups)
    stranded = any(each.unplaceable_requests for each in scaling.forecasts)
    hidden = [f"… {count(scaling.untried, 'more kind')} not tried"] if scaling.untried else []
    yield render.table(
        "what one more instance would change",
        (
            "fleet",
            "in time>",
            "late>",
            *(("run nowhere>",) if stranded else ()),
            "penalty>",
            "mean answer>",
            "last answer>",
            "on the new one>",
            "model changes>",
            "groups moved>",
        ),
        (_cells(each, scaling.names, has_deadlines, stranded) for each in scaling.forecasts),
        spare=("groups moved", "model changes", "penalty", "on the new one"),
        notes=[*hidden, *ASSUMED],
    )
    yield _fewest(scaling)


def _cells(
    forecast: FleetForecast, names: Mapping[str, str], has_deadlines: bool, stranded: bool
) -> tuple[object, ...]:
    added = forecast.kind is not None
    return (
        f"1 more of {names[forecast.kind]}" if forecast.kind is not None else "as it is",
        percent(forecast.expected_attainment) if has_deadlines else None,
        f"{forecast.late_requests:.1f}" if has_deadlines else None,
        *((forecast.unplaceable_requests,) if stranded else ()),
        price(forecast.penalty_s),
        None if forecast.mean_answer_s is None else f"in {render.span(forecast.mean_answer_s)}",
        None if forecast.last_answer_s is None else f"in {render.span(forecast.last_answer_s)}",
        count(forecast.added_requests, "request") if added else None,
        forecast.swaps,
        forecast.moved_groups,
    )


def _fewest(scaling: ScalingUp) -> str:
    late = scaling.forecasts[0].late_requests
    if late < LATE_MIN:
        return "no request is expected to be late"
    if scaling.fewest:
        added = ", ".join(f"{each.count} more of {scaling.names[each.kind]}" for each in scaling.fewest)
        return f"{scaling.saved_requests:.1f} of the {late:.1f} late requests can be saved by {added}"
    return "more instances would not repair what is missed: at most 1 % of the requests could be saved"
