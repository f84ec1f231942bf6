"""The objective of a request: the body wins over headers, headers over the service tier."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.request import NS_PER_MS
from qlm.domain.slo import (
    DEADLINE_MAX_MS,
    BatchSlo,
    DeadlineSlo,
    OnMiss,
    ReadingSlo,
    Slo,
    TokenSlo,
    check_ms,
    check_pace,
)
from qlm.domain.streaming.reader import READING_TOKENS_PER_S, SPEECH_TOKENS_PER_S
from qlm.gateway.api.bodies.parts import SloBody
from qlm.gateway.core.limits import P_MET_MIN_MAX, GatewayLimits
from qlm.gateway.core.tasks.urgency import Urgency

DEADLINE_HEADER: Final = "x-qlm-deadline-ms"
P_MET_MIN_HEADER: Final = "x-qlm-p-met-min"
P_MET_HEADER: Final = "x-qlm-p-met"
TTFT_HEADERS: Final = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
MS_MIN: Final = 0.01
"""Least milliseconds of an objective."""

TPOT_HEADERS: Final = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
PACE_HEADERS: Final = ("x-llm-d-slo-tokens-per-s", "x-slo-tokens-per-s")
OBJECTIVE_HEADERS: Final = frozenset(
    {DEADLINE_HEADER, P_MET_MIN_HEADER, P_MET_HEADER, *TTFT_HEADERS, *TPOT_HEADERS, *PACE_HEADERS}
)
READER_TTFT_MS: Final = 1000.0
"""First token of a reader who asks for a pace alone (the value of Andes)."""

PACES: Final[Mapping[str, float]] = {"reading": READING_TOKENS_PER_S, "speech": SPEECH_TOKENS_PER_S}
"""Tokens per second of each `slo.reader`."""


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective, and whether a request that misses it is served or dropped.

    Attributes:
        slo: The objective.
        on_miss: Serve or drop the request when it is late.
        deadline_ms: Deadline of the whole answer, beside an objective on its tokens.
        late: The request joins the demoted class from the start: its task cannot be in time any more.
    """

    slo: Slo
    on_miss: OnMiss = OnMiss.SERVE
    deadline_ms: float | None = None
    late: bool = False


def choose(
    body: SloBody | None,
    headers: Mapping[str, str],
    tier: str,
    limits: GatewayLimits,
    now_ns: int,
    urgency: Urgency | None = None,
) -> Objective:
    """Return a request's objective.

    Args:
        body: The field `slo`.
        headers: By name in lower case.
        tier: The field `service_tier`.
        limits: The defaults.
        now_ns: The request's arrival.
        urgency: Its urgency as a call of a task; None if it belongs to none.

    Raises:
        InvalidValueError: The objective is contradictory, not a positive finite time, or already past.
    """
    if urgency is not None:
        on_miss = OnMiss.SERVE if body is None else OnMiss(body.on_miss)
        due_ms = min(max(urgency.due_s * 1000, MS_MIN), DEADLINE_MAX_MS)
        return Objective(DeadlineSlo(deadline_ms=due_ms), on_miss, late=urgency.hopeless)
    if body is not None:
        return _from_body(body, limits, now_ns)
    if (from_headers := _from_headers(headers)) is not None:
        return from_headers
    return Objective(_from_tier(tier, limits))


def p_met_min(body: SloBody | None, headers: Mapping[str, str], limits: GatewayLimits) -> float | None:
    """Return the forecast probability of meeting the objective that admission requires; None or 0 for any.

    The field `slo` wins over the header, the header over the default of `limits`.

    Raises:
        InvalidValueError: The header is not such a probability.
    """
    if body is not None and body.p_met_min is not None:
        return body.p_met_min
    given = _probability(headers, P_MET_MIN_HEADER)
    return limits.p_met_min if given is None else given


def p_met(body: SloBody | None, headers: Mapping[str, str]) -> float | None:
    """Return the share of its class that a request wants promised to meet the objective; None for no promise.

    The field `slo` wins over the header.

    Raises:
        InvalidValueError: The header is not such a share.
    """
    if body is not None and body.p_met is not None:
        return body.p_met
    return _probability(headers, P_MET_HEADER)


def _probability(headers: Mapping[str, str], name: str) -> float | None:
    if (text := headers.get(name)) is None:
        return None
    value = _number(text)
    if not 0 <= value <= P_MET_MIN_MAX:
        raise InvalidValueError(name, text, f"a probability from 0 to {P_MET_MIN_MAX}")
    return value


def tier_of(slo: Slo, limits: GatewayLimits) -> str:
    """Return the service tier of an objective, for the client."""
    if isinstance(slo, BatchSlo):
        return "flex"
    return "priority" if slo == limits.interactive_slo else "default"


def task_deadline_ns(body: SloBody | None, now_ns: int) -> int | None:
    """Return the deadline of a call's task, nanoseconds since the epoch; None if it belongs to none.

    Raises:
        InvalidValueError: It is no time in the next 30 days, or the call has another objective besides.
    """
    if body is None or body.task is None:
        return None
    if given := _given(body):
        expected = "task alone: the deadline of a call follows from what its task has left"
        raise InvalidValueError("slo", sorted(given | {"task"}), expected)
    field, time = "slo.task.deadline_at", body.task.deadline_at
    _until(field, time, now_ns)
    return round(_at_ms(field, time) * 1000) * (NS_PER_MS // 1000)  # microseconds are exact as floats


def _given(body: SloBody) -> set[str]:
    fields = ("deadline_ms", "deadline_at", "ttft_ms", "tpot_ms", "tokens_per_s", "reader")
    return {name for name in fields if getattr(body, name) is not None}


def _from_body(body: SloBody, limits: GatewayLimits, now_ns: int) -> Objective:
    given = _given(body)
    on_miss = OnMiss(body.on_miss)
    if not given:
        return Objective(limits.default_slo, on_miss)
    if {"deadline_ms", "deadline_at"} <= given:
        raise _contradictory(given)
    deadline_ms = body.deadline_ms
    if body.deadline_at is not None:
        deadline_ms = _until("slo.deadline_at", body.deadline_at, now_ns)
    on_tokens = _on_tokens(body, given - {"deadline_ms", "deadline_at"}, given)
    if on_tokens is None:
        assert deadline_ms is not None
        return Objective(DeadlineSlo(deadline_ms=deadline_ms), on_miss)
    if deadline_ms is not None:
        _check_beside_body(body, deadline_ms, on_tokens.ttft_ms)
    return Objective(on_tokens, on_miss, deadline_ms)


def _check_beside_body(body: SloBody, deadline_ms: float, ttft_ms: float) -> None:
    """Refuse a deadline of the whole answer that is none, or earlier than that of its first token."""
    at = body.deadline_at is not None
    field = "slo.deadline_at" if at else "slo.deadline_ms"
    value = f"{deadline_ms:g} ms from now" if at else deadline_ms
    check_ms(field, deadline_ms)
    if deadline_ms < ttft_ms:
        raise InvalidValueError(field, value, _not_before("slo.ttft_ms", ttft_ms, body.ttft_ms is not None))


def _not_before(name: str, ttft_ms: float, sent: bool) -> str:
    """Return what is expected of a deadline that is earlier than the first token, sent or by default."""
    if sent:
        return f"at least {name}, {ttft_ms:g}"
    return f"at least {ttft_ms:g}, the default first token in ms; send {name} for an earlier one"


def _on_tokens(body: SloBody, pace: set[str], given: set[str]) -> TokenSlo | ReadingSlo | None:
    """Return the objective on the tokens of an answer; None if the body has none."""
    if not pace:
        return None
    if body.reader is not None and pace <= {"reader", "ttft_ms"}:
        ttft_ms = READER_TTFT_MS if body.ttft_ms is None else body.ttft_ms
        return ReadingSlo(ttft_ms=ttft_ms, tokens_per_s=PACES[body.reader])
    if body.ttft_ms is not None and body.tokens_per_s is not None and pace == {"ttft_ms", "tokens_per_s"}:
        return ReadingSlo(ttft_ms=body.ttft_ms, tokens_per_s=body.tokens_per_s)
    if body.ttft_ms is not None and pace <= {"ttft_ms", "tpot_ms"}:
        return TokenSlo(ttft_ms=body.ttft_ms, tpot_ms=body.tpot_ms)
    raise _contradictory(given)


def _contradictory(given: set[str]) -> InvalidValueError:
    expected = (
        "deadline_ms, or deadline_at, or ttft_ms with tpot_ms or tokens_per_s or neither, or reader alone or "
        "with ttft_ms; a deadline may come beside these"
    )
    return InvalidValueError("slo", sorted(given), expected)


def _until(field: str, time: float | str, now_ns: int) -> float:
    """Return the milliseconds from now to an absolute deadline."""
    left_ms = _at_ms(field, time) - now_ns / NS_PER_MS
    if not 0 < left_ms <= DEADLINE_MAX_MS:
        days = DEADLINE_MAX_MS // 86_400_000
        raise InvalidValueError(field, time, f"a time in the next {days} days")
    return left_ms


def _at_ms(field: str, time: float | str) -> float:
    return time * 1000 if isinstance(time, (int, float)) else _rfc3339_ms(field, time)


def _rfc3339_ms(field: str, text: str) -> float:
    expected = "seconds since the epoch or an RFC 3339 time such as 2026-11-22T12:00:00Z"
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidValueError(field, text, expected) from error
    if time.tzinfo is None:
        raise InvalidValueError(field, text, f"{expected}, with its offset from UTC")
    return time.timestamp() * 1000


def _from_headers(headers: Mapping[str, str]) -> Objective | None:
    """Return the objective that headers name, by the rules of the body; None if they name none."""
    deadline_ms = _header_ms(headers, (DEADLINE_HEADER,))
    on_tokens = _on_tokens_of_headers(headers)
    if on_tokens is None:
        return None if deadline_ms is None else Objective(DeadlineSlo(deadline_ms=deadline_ms))
    if deadline_ms is not None and deadline_ms < on_tokens.ttft_ms:
        sent = _sent(headers, TTFT_HEADERS)
        expected = _not_before(sent or TTFT_HEADERS[-1], on_tokens.ttft_ms, sent is not None)
        raise InvalidValueError(DEADLINE_HEADER, deadline_ms, expected)
    return Objective(on_tokens, deadline_ms=deadline_ms)


def _on_tokens_of_headers(headers: Mapping[str, str]) -> TokenSlo | ReadingSlo | None:
    ttft_ms = _header_ms(headers, TTFT_HEADERS)
    tpot_ms = _header_ms(headers, TPOT_HEADERS)
    if (pace_name := _sent(headers, PACE_HEADERS)) is not None:
        if tpot_ms is not None:
            expected = f"no other pace beside it; one of {', '.join((*TTFT_HEADERS, DEADLINE_HEADER))} may be"
            raise InvalidValueError(pace_name, headers[pace_name], expected)
        tokens_per_s = _header_pace(pace_name, headers[pace_name])
        return ReadingSlo(ttft_ms=READER_TTFT_MS if ttft_ms is None else ttft_ms, tokens_per_s=tokens_per_s)
    if ttft_ms is not None:
        return TokenSlo(ttft_ms=ttft_ms, tpot_ms=tpot_ms)
    if tpot_ms is not None:
        expected = f"to come together with one of {', '.join(TTFT_HEADERS)}"
        raise InvalidValueError(_sent(headers, TPOT_HEADERS) or "", tpot_ms, expected)
    return None


def _sent(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Return the first of some names that a request has as a header; None if it has none of them."""
    return next((each for each in names if each in headers), None)


def _header_pace(name: str, text: str) -> float:
    tokens_per_s = _number(text)
    try:
        check_pace(name, tokens_per_s)
    except InvalidValueError as error:
        raise InvalidValueError(name, text, error.expected) from None  # the text, not what was read of it
    return tokens_per_s


def _header_ms(headers: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    if (name := _sent(headers, names)) is None:
        return None
    text = headers[name]
    value = _number(text)
    if not MS_MIN <= value <= DEADLINE_MAX_MS:
        raise InvalidValueError(name, text, f"a number of milliseconds from {MS_MIN} to {DEADLINE_MAX_MS}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _from_tier(tier: str, limits: GatewayLimits) -> Slo:
    match tier:
        case "flex":
            return BatchSlo()
        case "priority":
            return limits.interactive_slo
    return limits.default_slo
