"""Extensions: optional fields of requests, output logs and classes.

Readers of earlier versions leave them out, so no field here may change the tokens of an answer. A field of a
later version is kept as JSON text in `unknown`, and written again with the record.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.field_checks import CHECKS
from qlm.domain.formats.token_logprobs import Piece

EXTENSIONS_BYTES_MAX: Final = 65_536
"""Longest extensions of one message or log entry, as JSON."""

_SHORT: Final = (int, float, bool)
"""Types of values without a length of their own."""

LEVELS_MAX: Final = 16
"""Deepest nesting of an unknown field."""

Unknown = tuple[tuple[str, str], ...]
"""Names of unknown fields, sorted, each with its value as JSON text."""


_PIECE: Final = re.compile(r"logprobs\.(-?\d{1,10})")
"""Name of a piece of log probabilities: each is a field of its own, so that a log grows by what is new."""

_NAMES: Final[dict[Any, tuple[str, ...]]] = {}


def _names(kind: Any) -> tuple[str, ...]:
    if kind not in _NAMES:
        _NAMES[kind] = tuple(name for name in kind.__slots__ if name not in ("unknown", "logprobs_at"))
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
        p_met: Share of its requests promised to meet the objective.
        deadline_ms: Deadline of the whole answer, beside an objective on its tokens.
        reader_tokens_per_s: Pace at which the answers are read.
        unknown: Fields of later versions.
    """

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

    The pieces of `logprobs_at` add up; where some overlap, the last counts.

    Attributes:
        render_state: State of the renderer, opaque to QLM.
        render_state_tokens: Output tokens rendered in that state.
        preemptions: Preemptions of the request so far, by all agents.
        engine_losses: Engines that failed under the request so far, at all agents.
        cached_tokens: Prompt tokens that its engine found in the prefix cache.
        logprobs_at: Pieces of the log probabilities of its tokens, and of its prompt (`token_logprobs`).
        unknown: Fields of later versions.
    """

    render_state: str | None = None
    render_state_tokens: int | None = None
    preemptions: int | None = None
    engine_losses: int | None = None
    cached_tokens: int | None = None
    logprobs_at: tuple[Piece, ...] = ()
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
        logprobs: Number of candidates per output token whose log probabilities the engine is asked for.
        prompt_logprobs: Number of candidates per token of the prompt, besides the token itself, whose log
            probabilities the engine is asked for.
        choice: Number of its answer, from 0, among those of the client's request; None if that has one.
        choices: Answers of the client's request, each a request of its own here: a family.
        prompts: Prompts of the client's request, each with the same number of answers.
        notify: True if an event of its end goes to the outbox.
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
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    choice: int | None = None
    choices: int | None = None
    prompts: int | None = None
    notify: bool | None = None
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
    for offset, text in getattr(extensions, "logprobs_at", ()):
        plain[f"logprobs.{offset}"] = text
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
    if kind is LogExtensions:
        known["logprobs_at"] = _pieces(plain, further)
        further = [name for name in further if not _PIECE.fullmatch(name)]
    return kind(**known, unknown=tuple((name, _text(plain[name], f"{path}.{name}")) for name in further))


def _pieces(plain: Mapping[str, Any], names: Sequence[str]) -> tuple[Piece, ...]:
    given = [name for name in names if plain[name] is not None]
    found = [(int(match[1]), plain[name]) for name in given if (match := _PIECE.fullmatch(name))]
    for offset, text in found:
        if not isinstance(text, str):
            raise InvalidValueError(f"extensions.logprobs.{offset}", text, "a text")
    return tuple(sorted(found))


def merged(former: Merged, latter: Merged) -> Merged:
    """Return the fields of both; where both have one, that of `latter`."""
    if former is NO_LOG_EXTENSIONS or former is NO_CLASS_EXTENSIONS:
        return latter
    values = {name: getattr(latter, name) for name in _names(type(latter))}
    unknown = sorted({**dict(former.unknown), **dict(latter.unknown)}.items())
    given = {name: value for name, value in values.items() if value is not None}
    if isinstance(former, LogExtensions) and isinstance(latter, LogExtensions):
        given["logprobs_at"] = _joined(former.logprobs_at, latter.logprobs_at)
    return replace(former, **given, unknown=tuple(unknown))


def _joined(former: tuple[Piece, ...], latter: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Return the pieces of both by offset; of two at one offset, the latter."""
    if not former or not latter or former[-1][0] < latter[0][0]:
        return former + latter
    return tuple(sorted({**dict(former), **dict(latter)}.items()))


def without_logprobs(extensions: LogExtensions) -> LogExtensions:
    """Return the fields of a log without its pieces of log probabilities."""
    return replace(extensions, logprobs_at=()) if extensions.logprobs_at else extensions


def only_logprobs(extensions: LogExtensions) -> LogExtensions:
    """Return the pieces of log probabilities alone, which a reader of the output needs before its end."""
    return LogExtensions(logprobs_at=extensions.logprobs_at) if extensions.logprobs_at else NO_LOG_EXTENSIONS


def check_size(extensions: Extensions) -> None:
    """Refuse extensions too long for one message or log entry; log probabilities grow with its tokens.

    Raises:
        InvalidValueError: They are.
    """
    if isinstance(extensions, LogExtensions):
        if extensions.render_state is None and not extensions.unknown:
            return
        extensions = without_logprobs(extensions)
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
