"""Objective of a request on its way into the engine: `sampling_params.extra_args["qlm"]`.

All times are relative to the time of sending, so that the clocks of agent and engine need not agree. What has
its default is left out. A reader of this version ignores keys that it does not know.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, Final, NamedTuple

from qlm.agents.batching.view import NO_READER
from qlm.domain.errors import InvalidValueError
from qlm.domain.ports.engine import CallObjective

KEY: Final = "qlm"
VERSION: Final = 1

_LARGEST: Final = 1e10
"""Largest time and pace: whole nanoseconds of it can be added to any clock."""

_SLOWEST: Final = 1e-10
"""Slowest pace but 0: the time of a token is no longer than `_LARGEST`."""

_COUNT_MAX: Final = 2**63 - 1
"""Largest count and rank: columns of a view are 64-bit integers."""


class Objective(NamedTuple):
    """What a request asks for, and what has happened to it so far.

    Attributes:
        age_s: Time since its arrival at QLM.
        ttft_s: Seconds from arrival until the reader expects the first token; inf without such an objective.
        rate: Pace of the reader, tokens per second; inf without a reader, 0 if only the first token counts.
        left_s: Time until the deadline of the whole answer, negative after it; inf without.
        shown: Output tokens of earlier generations; they are the end of the prompt.
        late_s: Lateness of the last of them: the idle time of the user so far.
        rank: Place of its group in the virtual queue.
        pinned: It must not be preempted.
    """

    age_s: float = 0.0
    ttft_s: float = inf
    rate: float = NO_READER
    left_s: float = inf
    shown: int = 0
    late_s: float = 0.0
    rank: int = 0
    pinned: bool = False

    def extra_args(self) -> dict[str, Any]:
        """Write the mapping for `SamplingParams.extra_args`."""
        values = zip(self._fields, self, NO_OBJECTIVE, strict=True)
        return {
            KEY: {"version": VERSION} | {name: value for name, value, default in values if value != default}
        }


NO_OBJECTIVE: Final = Objective()


def sent_objective(objective: CallObjective, now_ns: int) -> Objective:
    """Return the objective of a call as it is sent at a time.

    Args:
        objective: With times since the epoch.
        now_ns: By the same clock.
    """
    deadline_ns = objective.deadline_ns
    return Objective(
        age_s=max(0, now_ns - objective.arrival_ns) / 1e9,
        ttft_s=objective.ttft_s,
        rate=objective.tokens_per_s,
        left_s=inf if deadline_ns is None else (deadline_ns - now_ns) / 1e9,
        shown=objective.shown,
        late_s=objective.late_s,
        rank=objective.rank,
    )


def received_objective(objective: Objective, now_ns: int, *, time_scale: float = 1.0) -> CallObjective:
    """Return an objective that was received at a time.

    Args:
        objective: As it was sent.
        now_ns: Time of the engine's clock.
        time_scale: Real seconds per second of that clock.
    """

    def at_ns(real_s: float) -> int:
        return now_ns + round(real_s / time_scale * 1e9)

    return CallObjective(
        arrival_ns=at_ns(-objective.age_s),
        ttft_s=objective.ttft_s / time_scale,
        tokens_per_s=objective.rate * time_scale,
        deadline_ns=None if objective.left_s == inf else at_ns(objective.left_s),
        rank=objective.rank,
        shown=objective.shown,
        late_s=objective.late_s / time_scale,
    )


def objective_of(extra_args: Mapping[str, Any] | None, *, prompt_tokens: int) -> Objective:
    """Read the mapping of a request; one without is without objective.

    Raises:
        InvalidValueError: It is malformed.
    """
    if not extra_args or KEY not in extra_args:
        return NO_OBJECTIVE
    plain = extra_args[KEY]
    if not isinstance(plain, Mapping):
        raise InvalidValueError(_path(), plain, "a mapping")
    if plain.get("version") != VERSION:
        raise InvalidValueError(_path("version"), plain.get("version"), str(VERSION))
    objective = Objective(
        age_s=_number(plain, "age_s"),
        ttft_s=_number(plain, "ttft_s"),
        rate=_number(plain, "rate"),
        left_s=_number(plain, "left_s", least=-_LARGEST),
        shown=_count(plain, "shown"),
        late_s=_number(plain, "late_s"),
        rank=_count(plain, "rank"),
        pinned=_flag(plain, "pinned"),
    )
    if 0 < objective.rate < _SLOWEST:
        raise InvalidValueError(_path("rate"), objective.rate, f"0, or a number from {_SLOWEST:g}")
    if objective.rate != NO_READER and objective.ttft_s == inf:
        raise InvalidValueError(_path("ttft_s"), None, "a number, as there is a rate")
    if objective.shown >= prompt_tokens:
        raise InvalidValueError(_path("shown"), objective.shown, f"less than {prompt_tokens} prompt tokens")
    return objective


def _path(*names: str) -> str:
    return ".".join(("extra_args", KEY, *names))


def _default(name: str) -> Any:
    return getattr(NO_OBJECTIVE, name)


def _number(plain: Mapping[str, Any], name: str, *, least: float = 0.0) -> float:
    if name not in plain:
        return float(_default(name))
    value = plain[name]
    # Not `isfinite`: a whole number may be too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= _LARGEST:
        raise InvalidValueError(_path(name), value, f"a number from {least:g} to {_LARGEST:g}")
    return float(value)


def _count(plain: Mapping[str, Any], name: str) -> int:
    value = plain.get(name, _default(name))
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _COUNT_MAX:
        raise InvalidValueError(_path(name), value, "a whole number from 0 to 2^63 - 1")
    return value


def _flag(plain: Mapping[str, Any], name: str) -> bool:
    value = plain.get(name, _default(name))
    if not isinstance(value, bool):
        raise InvalidValueError(_path(name), value, "true or false")
    return value
