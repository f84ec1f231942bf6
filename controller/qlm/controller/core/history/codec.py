"""The stored form of a history: JSON with a version.

Fields that this version does not know are left out, so that a later version may add some. Numbers have six
digits. Bins without answers are not written.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from qlm.controller.core.estimating.arrivals import Arrivals
from qlm.controller.core.expected.log import NOTHING_FORECAST, ForecastLog
from qlm.controller.core.history.classes import CLASSES_MAX, ClassRecord
from qlm.controller.core.history.history import History
from qlm.controller.core.history.speeds import SPEEDS_MAX, SpeedRecord
from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.plain import class_to_plain
from qlm.domain.formats.published import Published
from qlm.domain.group import RequestClass
from qlm.domain.ids import InstanceId, ModelId
from qlm.domain.ports.published import PublishedKind
from qlm.planner.plain_reader import Reader
from qlm.rct_estimator.correction import Correction
from qlm.rct_estimator.forecast_errors import SHAPE, Counts
from qlm.rct_estimator.length_predictive import BINS, TOKENS_MAX
from qlm.rct_estimator.output_length import LengthCounts

VERSION: Final = 1

_TIME_MAX_NS: Final = 2**63 - 1
_NUMBER_MAX: Final = 1e15

OUTCOME_MIN: Final = 0.01
"""Least weight of outcomes in a bin that is written."""

_MEANS: Final = ("mean_prompt_tokens", "var_prompt_tokens", "mean_max_tokens", "var_max_tokens")
_WHOLE: Final = frozenset({"seen_ns", "present_ns", "total", "accepted", "kept"})
_FORECASTS: Final = ("waits", "ends")
_CORRECTION: Final = ("log_ratio", "log_var", "observed_var", "observed_weight")


def history_to_plain(history: History) -> dict[str, Any]:
    """Write it as dicts, lists, numbers and strings."""
    return {
        "version": VERSION,
        "at_ns": history.at_ns,
        "classes": [
            _class_to_plain(cls, record, history.arrivals.get(cls)) for cls, record in history.classes.items()
        ],
        "speeds": [
            {"instance": instance, "model": model, "accelerator": each.accelerator, "at_ns": each.at_ns}
            | {name: getattr(each.correction, name) for name in _CORRECTION}
            for (instance, model), each in history.speeds.items()
        ],
        "forecast_errors": {
            name: _outcomes_to_plain(getattr(history.forecasts, name).counts) for name in _FORECASTS
        },
    }


def history_from_plain(plain: Any) -> History:
    """Read what `history_to_plain` wrote.

    Raises:
        InvalidValueError: The version is unknown, or a field is missing, of the wrong type or out of range.
    """
    reader = Reader("history", plain)
    reader.version(VERSION)
    classes: dict[RequestClass, ClassRecord] = {}
    arrivals: dict[RequestClass, Arrivals] = {}
    for at, each in enumerate(reader.sequence("classes", CLASSES_MAX)):
        cls, record, known = _class_from_plain(Reader(f"history.classes.{at}", each))
        classes[cls] = record
        if known is not None:
            arrivals[cls] = known
    speeds = dict(
        _speed_from_plain(Reader(f"history.speeds.{at}", each))
        for at, each in enumerate(reader.sequence("speeds", SPEEDS_MAX))
    )
    return History(
        at_ns=_time(reader, "at_ns"),
        classes=classes,
        arrivals=arrivals,
        speeds=speeds,
        forecasts=_forecasts_from_plain(reader.take("forecast_errors", {})),
    )


def _class_to_plain(cls: RequestClass, record: ClassRecord, arrivals: Arrivals | None) -> dict[str, Any]:
    plain: dict[str, Any] = {"cls": class_to_plain(cls), "at_ns": record.at_ns, "finished": record.finished}
    plain |= {name: _short(getattr(record, name)) for name in _MEANS}
    plain["lengths"] = _counts_to_plain(record.counts)
    plain["arrivals"] = None if arrivals is None else _arrivals_to_plain(arrivals)
    return plain


def _arrivals_to_plain(arrivals: Arrivals) -> dict[str, float]:
    values = {each.name: getattr(arrivals, each.name) for each in fields(Arrivals)}
    return {name: value if name in _WHOLE else _short(value) for name, value in values.items()}


def _class_from_plain(reader: Reader) -> tuple[RequestClass, ClassRecord, Arrivals | None]:
    record = ClassRecord(
        at_ns=_time(reader, "at_ns"),
        finished=reader.integer("finished", least=0, most=_TIME_MAX_NS),
        former=_counts_from_plain(reader.where, reader.sequence("lengths", BINS)),
        mean_prompt_tokens=_number(reader, "mean_prompt_tokens"),
        var_prompt_tokens=_number(reader, "var_prompt_tokens"),
        mean_max_tokens=_number(reader, "mean_max_tokens"),
        var_max_tokens=_number(reader, "var_max_tokens"),
    )
    known = reader.take("arrivals", None)
    arrivals = None if known is None else _arrivals(Reader(f"{reader.where}.arrivals", known))
    return _cls(reader), record, arrivals


def _cls(reader: Reader) -> RequestClass:
    inner = Reader(f"{reader.where}.cls", reader.take("cls"))
    late = inner.take("late", False)
    if not isinstance(late, bool):
        raise InvalidValueError(f"{inner.where}.late", late, "true or false")
    return RequestClass(
        model=ModelId(inner.text("model")),
        slo=inner.text("slo"),
        cluster=inner.text("cluster"),
        priority=inner.integer("priority", least=-(2**31), most=2**31),
        target_ms=inner.number_or_none("target_ms", least=0, most=_NUMBER_MAX),
        late=late,
    )


def _arrivals(reader: Reader) -> Arrivals:
    values: dict[str, Any] = {}
    for each in fields(Arrivals):
        if each.name in _WHOLE:
            # A former release wrote no `kept`.
            absent = {"default": 0} if each.name == "kept" else {}
            values[each.name] = reader.integer(each.name, least=0, most=_TIME_MAX_NS, **absent)
        else:
            values[each.name] = _number(reader, each.name)
    return Arrivals(**values)


def _speed_from_plain(reader: Reader) -> tuple[tuple[InstanceId, ModelId], SpeedRecord]:
    numbers = {name: reader.number(name, least=-_NUMBER_MAX, most=_NUMBER_MAX) for name in _CORRECTION}
    record = SpeedRecord(
        at_ns=_time(reader, "at_ns"),
        accelerator=reader.text("accelerator"),
        correction=Correction(**numbers),
    )
    return (InstanceId(reader.text("instance")), ModelId(reader.text("model"))), record


def _outcomes_to_plain(counts: Counts) -> list[list[float]]:
    """Return rows of turn, horizon, bin and weight."""
    return [[*map(int, at), _short(float(counts[tuple(at)]))] for at in np.argwhere(counts >= OUTCOME_MIN)]


def _forecasts_from_plain(plain: Any) -> ForecastLog:
    """Return a log with stored outcomes; one of a former release has none."""
    reader, found = Reader("history.forecast_errors", plain), {}
    for name in _FORECASTS:
        counts = np.zeros(SHAPE)
        for row in reader.take(name, []):
            good = isinstance(row, Sequence) and len(row) == 4 and all(_is_number(each) for each in row)
            if not good or any(int(at) != at or at >= most for at, most in zip(row, SHAPE, strict=False)):
                raise InvalidValueError(f"{reader.where}.{name}", row, "turn, horizon, bin and weight")
            counts[tuple(int(at) for at in row[:3])] = row[3]
        found[name] = getattr(NOTHING_FORECAST, name).with_counts(counts)
    return ForecastLog(**found)


def _counts_to_plain(counts: LengthCounts) -> list[list[float]]:
    """Return rows of bin, ended answers, their tokens, and answers that outlived it."""
    some = np.flatnonzero(counts.ended + counts.outlived)
    return [
        [int(at), _short(counts.ended[at]), _short(counts.tokens[at]), _short(counts.outlived[at])]
        for at in some
    ]


def _counts_from_plain(where: str, rows: Sequence[Any]) -> LengthCounts:
    ended, tokens, outlived = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS)
    for row in rows:
        at = _row(where, row)
        ended[at], tokens[at], outlived[at] = row[1:]
    if np.any(tokens > 1.001 * ended * TOKENS_MAX):
        raise InvalidValueError(f"{where}.lengths", tokens.max(), "tokens of the answers that ended")
    return LengthCounts(ended, outlived, tokens)


def _row(where: str, row: Any) -> int:
    """Return the bin of a row.

    Raises:
        InvalidValueError: It is not a bin with three numbers.
    """
    good = isinstance(row, Sequence) and len(row) == 4 and all(_is_number(each) for each in row)
    if not good or not isinstance(row[0], int) or not 0 <= row[0] < BINS:
        raise InvalidValueError(f"{where}.lengths", row, f"a bin below {BINS} and three numbers, 0 or more")
    return row[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX


def _number(reader: Reader, key: str) -> float:
    return reader.number(key, least=0, most=_NUMBER_MAX)


def _time(reader: Reader, key: str) -> int:
    return reader.integer(key, least=0, most=_TIME_MAX_NS)


def _short(number: float) -> float:
    return float(f"{number:.6g}")


HISTORY: Final = Published(
    kind=PublishedKind.HISTORY, to_plain=history_to_plain, from_plain=history_from_plain
)
