"""Extensions: optional fields of requests, output logs and classes.

Readers of earlier versions leave them out, so no field here may change the tokens of an answer. A field of a
later version is kept as JSON text in `unknown`, and written again with the record.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.field_checks import CHECKS
from qlm.domain.ids import ModelId

EXTENSIONS_BYTES_MAX: Final = 65_536
"""Longest extensions of one message or log entry, as JSON."""

_SHORT: Final = (int, float, bool)
"""Types of values without a length of their own."""

LEVELS_MAX: Final = 16
"""Deepest nesting of an unknown field."""

Unknown = tuple[tuple[str, str], ...]
"""Names of unknown fields, sorted, each with its value as JSON text."""


_NAMES: Final[dict[Any, tuple[str, ...]]] = {}


def _names(kind: Any) -> tuple[str, ...]:
    if kind not in _NAMES:
        _NAMES[kind] = tuple(name for name in kind.__slots__ if name != "unknown")
    return _NAMES[kind]


def _check(extensions: Any, path: str) -> None:
    for name in _names(type(extensions)):
        value = getattr(extensions, name)
        if value is not None and name in CHECKS:
            CHECKS[name](f"{path}.{name}", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassExtensions:
    """Optional fields of a class, equal for all its requests.

    Attributes:
        base_model: Base of its model, if that is an adapter.
        p_met: Share of its requests promised to meet the objective.
        deadline_ms: Deadline of the whole answer, beside an objective on its tokens.
        reader_tokens_per_s: Pace at which the answers are read.
        unknown: Fields of later versions.
    """

    base_model: ModelId | None = None
    p_met: float | None = None
    deadline_ms: float | None = None
    reader_tokens_per_s: float | None = None
    unknown: Unknown = ()

    def __post_init__(self) -> None:
        _check(self, "extensions.cls")


NO_CLASS_EXTENSIONS: Final = ClassExtensions()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExtensions:
    """Optional fields of an output log; each has the value of the last entry with that field.

    Attributes:
        render_state: State of the renderer, opaque to QLM.
        render_state_tokens: Output tokens rendered in that state.
        preemptions: Preemptions of the request so far, by all agents.
        cached_tokens: Prompt tokens that its engine found in the prefix cache.
        unknown: Fields of later versions.
    """

    render_state: str | None = None
    render_state_tokens: int | None = None
    preemptions: int | None = None
    cached_tokens: int | None = None
    unknown: Unknown = ()

    def __post_init__(self) -> None:
        _check(self, "extensions")
        if (self.render_state is None) != (self.render_state_tokens is None):
            raise InvalidValueError(
                "extensions.render_state_tokens",
                self.render_state_tokens,
                "a number just with a render_state",
            )


NO_LOG_EXTENSIONS: Final = LogExtensions()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestExtensions:
    """Optional fields of a request.

    Attributes:
        cls: Those of its class.
        p_met: Least forecast probability of meeting its objective with which it may be admitted.
        render_state: What the renderer of its answer needs, opaque to QLM.
        task_id: Task of several calls that it belongs to.
        task_calls: Calls of the task expected after it.
        task_deadline_ns: Deadline of the task, nanoseconds since the epoch.
        deadline_ms: Deadline of the whole answer after arrival, beside an objective on its tokens.
        reader_tokens_per_s: Pace at which the answer is read, beside an objective without one.
        response_state: What the Responses API says of it later, opaque to QLM.
        unknown: Fields of later versions.
    """

    cls: ClassExtensions = NO_CLASS_EXTENSIONS
    p_met: float | None = None
    render_state: str | None = None
    task_id: str | None = None
    task_calls: int | None = None
    task_deadline_ns: int | None = None
    deadline_ms: float | None = None
    reader_tokens_per_s: float | None = None
    response_state: str | None = None
    unknown: Unknown = ()

    def __post_init__(self) -> None:
        _check(self, "extensions")
        if self.task_id is None and (self.task_calls is not None or self.task_deadline_ns is not None):
            raise InvalidValueError("extensions.task_id", None, "the task of task_calls and task_deadline_ns")
        check_size(self)


Extensions = ClassExtensions | LogExtensions | RequestExtensions
E = TypeVar("E", ClassExtensions, LogExtensions, RequestExtensions)
Merged = TypeVar("Merged", ClassExtensions, LogExtensions)


def extensions_to_plain(extensions: Extensions) -> dict[str, Any]:
    """Return the fields that are set, those of later versions included, as plain data."""
    plain: dict[str, Any] = {}
    for name in _names(type(extensions)):
        value = getattr(extensions, name)
        if isinstance(value, ClassExtensions):
            value = extensions_to_plain(value) or None
        if value is not None:
            plain[name] = value
    return plain | {name: json.loads(text) for name, text in extensions.unknown}


def extensions_from_plain(kind: type[E], plain: object, path: str = "extensions") -> E:
    """Return the extensions of plain data.

    Raises:
        InvalidValueError: It is not an object, or a field has a wrong value.
    """
    if not isinstance(plain, Mapping):
        raise InvalidValueError(path, plain, "a JSON object")
    known = {name: plain[name] for name in _names(kind) if plain.get(name) is not None}
    if "cls" in known:
        known["cls"] = extensions_from_plain(ClassExtensions, known["cls"], f"{path}.cls")
    further = sorted(plain.keys() - set(_names(kind)))
    return kind(**known, unknown=tuple((name, _text(plain[name], f"{path}.{name}")) for name in further))


def merged(former: Merged, latter: Merged) -> Merged:
    """Return the fields of both; where both have one, that of `latter`."""
    if former is NO_LOG_EXTENSIONS or former is NO_CLASS_EXTENSIONS:
        return latter
    values = {name: getattr(latter, name) for name in _names(type(latter))}
    unknown = sorted({**dict(former.unknown), **dict(latter.unknown)}.items())
    given = {name: value for name, value in values.items() if value is not None}
    return replace(former, **given, unknown=tuple(unknown))


def check_size(extensions: Extensions) -> None:
    """Refuse extensions too long for one message or log entry.

    Raises:
        InvalidValueError: They are.
    """
    plain = extensions_to_plain(extensions)
    if not all(type(value) in _SHORT for value in plain.values()):
        size_bytes = len(json.dumps(plain, ensure_ascii=False).encode())
        if size_bytes > EXTENSIONS_BYTES_MAX:
            raise InvalidValueError("extensions", size_bytes, f"at most {EXTENSIONS_BYTES_MAX} bytes of JSON")


def _text(value: object, path: str) -> str:
    """Return an unknown field as JSON text, equal for equal values."""
    if _is_deeper(value, LEVELS_MAX):
        raise InvalidValueError(path, value, f"at most {LEVELS_MAX} levels")
    return json.dumps(value, allow_nan=False, ensure_ascii=False, sort_keys=True)


def _is_deeper(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(each, levels - 1) for each in inner)


NO_REQUEST_EXTENSIONS: Final = RequestExtensions()
