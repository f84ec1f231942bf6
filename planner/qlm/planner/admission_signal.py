"""The controller's forecast for admission control: expected times of a request that arrives now, by class."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.published import Published
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.ports.published import PublishedKind
from qlm.planner.limits import CLOCK_MAX_S
from qlm.planner.plain_reader import Reader, number
from qlm.rct_estimator.normal import Normal

VERSION: Final = 1

CLASSES_MAX: Final = 100
"""Most classes in a signal; of more, those with the most waiting requests are kept."""

DEPARTURE_POINTS_MAX: Final = 17
"""Most points of a departure curve."""

_VAR_MAX: Final = CLOCK_MAX_S**2
_COUNT_MAX: Final = 10**12
_PRIORITY_MAX: Final = 2**31


@dataclass(frozen=True, slots=True)
class DepartureCurve:
    """Forecast of the departures from the queue, assuming no new arrivals: a line through points.

    Attributes:
        after_s: Seconds since the signal was made; not falling.
        gone: Number of requests that have left by then; not falling, of the same length.
    """

    after_s: tuple[float, ...] = ()
    gone: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.after_s) != len(self.gone):
            raise InvalidValueError("drain.gone", len(self.gone), f"{len(self.after_s)} numbers")
        for name, values in (("after_s", self.after_s), ("gone", self.gone)):
            if any(a > b for a, b in pairwise(values)):
                raise InvalidValueError(f"drain.{name}", values, "numbers that do not fall")

    def gone_at(self, after_s: float) -> float:
        """Return the number of requests that have left by then."""
        at = bisect_right(self.after_s, after_s)
        return _between(self.after_s, self.gone, at, after_s) if self.gone else 0.0

    def wait_s(self, requests: float, after_s: float) -> float | None:
        """Return the seconds from `after_s` until this many more requests have left; None for never."""
        wanted = self.gone_at(after_s) + requests
        at = bisect_left(self.gone, wanted)
        if at == len(self.gone):
            return None
        return max(0.0, _between(self.gone, self.after_s, at, wanted) - after_s)


NO_DEPARTURES: Final = DepartureCurve()
"""Curve of a class without waiting requests that will ever be served."""


def _between(xs: Sequence[float], ys: Sequence[float], at: int, x: float) -> float:
    """Interpolate where `xs[at - 1] <= x <= xs[at]`; constant beyond the end points."""
    if at == 0 or at == len(xs):
        return ys[max(0, at - 1)]
    share = (x - xs[at - 1]) / (xs[at] - xs[at - 1])
    return ys[at - 1] + share * (ys[at] - ys[at - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassForecast:
    """Forecast for a request of a class that arrives now; times in seconds since the signal was made.

    Attributes:
        waiting: Waiting requests of the class.
        instance: Instance that would complete the request first.
        wait: Time until it leaves the queue.
        first_token: Time until its first token; of readers whose pace no batch keeps, later by as much as the
            answer falls behind them.
        completion: Time until its completion.
        alone_first_token: Time from its start to its first token, with no work before it and the model
            loaded.
        alone_completion: Time from its start to its completion, under the same conditions.
        token_s: Time per output token.
        each_s: Extra wait per further request of the model that goes first.
        departures: Departures of the class's waiting requests, late ones included.
    """

    cls: RequestClass
    waiting: int
    instance: InstanceId
    wait: Normal
    first_token: Normal
    completion: Normal
    alone_first_token: Normal
    alone_completion: Normal
    token_s: float
    each_s: float
    departures: DepartureCurve = NO_DEPARTURES


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSignal:
    """Forecasts of all classes.

    Attributes:
        at_ms: Time of the forecast, milliseconds since the epoch.
        departures: Departures of all waiting requests.
        classes: Forecasts by class; classes that are missing cannot be forecast.
    """

    at_ms: int
    departures: DepartureCurve
    classes: Mapping[RequestClass, ClassForecast]


def signal_to_plain(signal: AdmissionSignal) -> dict[str, Any]:
    """Write it as dicts, lists, numbers and strings."""
    return {
        "version": VERSION,
        "at_ms": signal.at_ms,
        "drain": _departures_to_plain(signal.departures),
        "classes": [_class_to_plain(each) for each in signal.classes.values()],
    }


def signal_from_plain(plain: Any) -> AdmissionSignal:
    """Read what `signal_to_plain` wrote.

    Raises:
        InvalidValueError: A field is missing, unknown, of the wrong type or out of range; it is named.
    """
    reader = Reader("admission signal", plain)
    reader.version(VERSION)
    at_ms = reader.integer("at_ms", least=0, most=round(1000 * CLOCK_MAX_S))
    departures = _departures_from_plain(f"{reader.where}.drain", reader.take("drain"))
    rows = [
        _class_from_plain(f"{reader.where}.classes[{at}]", each)
        for at, each in enumerate(reader.sequence("classes", CLASSES_MAX))
    ]
    reader.done()
    return AdmissionSignal(at_ms=at_ms, departures=departures, classes={each.cls: each for each in rows})


_TIMES: Final = ("wait", "first_token", "completion", "alone_first_token", "alone_completion")


def _class_to_plain(forecast: ClassForecast) -> dict[str, Any]:
    cls = forecast.cls
    times = {f"{name}_s": getattr(forecast, name) for name in _TIMES}
    return {
        "model": cls.model,
        "slo_class": cls.slo,
        "cluster": cls.cluster,
        "priority": cls.priority,
        "target_ms": cls.target_ms,
        "waiting": forecast.waiting,
        "instance": forecast.instance,
        **{name: {"mean": time.mean, "var": time.var} for name, time in times.items()},
        "token_s": forecast.token_s,
        "each_s": forecast.each_s,
        "drain": _departures_to_plain(forecast.departures),
    }


def _class_from_plain(where: str, plain: Any) -> ClassForecast:
    reader = Reader(where, plain)
    cls = RequestClass(
        model=ModelId(reader.text("model")),
        slo=reader.text("slo_class"),
        cluster=reader.text("cluster"),
        priority=reader.integer("priority", least=-_PRIORITY_MAX, most=_PRIORITY_MAX),
        target_ms=reader.number_or_none("target_ms", least=0.0, most=1000 * CLOCK_MAX_S),
    )
    times = {name: _normal(f"{where}.{name}_s", reader.take(f"{name}_s")) for name in _TIMES}
    forecast = ClassForecast(
        cls=cls,
        waiting=reader.integer("waiting", least=0, most=_COUNT_MAX),
        instance=InstanceId(reader.text("instance")),
        token_s=reader.number("token_s", least=0.0, most=CLOCK_MAX_S),
        each_s=reader.number("each_s", least=0.0, most=CLOCK_MAX_S),
        departures=_departures_from_plain(f"{where}.drain", reader.take("drain")),
        **times,
    )
    reader.done()
    return forecast


def _normal(where: str, plain: Any) -> Normal:
    reader = Reader(where, plain)
    mean = reader.number("mean", least=-CLOCK_MAX_S, most=CLOCK_MAX_S)
    time = Normal(mean, reader.number("var", least=0.0, most=_VAR_MAX))
    reader.done()
    return time


def _departures_to_plain(curve: DepartureCurve) -> dict[str, Any]:
    return {"after_s": list(curve.after_s), "gone": list(curve.gone)}


def _departures_from_plain(where: str, plain: Any) -> DepartureCurve:
    reader = Reader(where, plain)
    columns = {}
    for name, most in (("after_s", CLOCK_MAX_S), ("gone", float(_COUNT_MAX))):
        values = reader.sequence(name, DEPARTURE_POINTS_MAX)
        columns[name] = tuple(
            number(f"{where}.{name}[{at}]", each, least=0.0, most=most) for at, each in enumerate(values)
        )
    reader.done()
    return DepartureCurve(**columns)


SIGNAL: Final = Published(kind=PublishedKind.SIGNAL, to_plain=signal_to_plain, from_plain=signal_from_plain)
