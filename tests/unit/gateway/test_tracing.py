"""The spans of requests: begun once, ended once, whatever becomes of the request."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.ports.tracing import well_formed
from qlm.domain.request import AnswerKind
from qlm.gateway.api.errors import ApiError
from qlm.gateway.api.translate import traceparent
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.observability.tracing import SPAN, Attempt, RequestSpans
from support.requests import a_request
from support.spans import Spans, failed

S = 1_000_000_000
AWAY = ApiError(status=503, message="the queue is away", code="broker_unavailable")
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


class At5S:
    def now_ns(self) -> int:
        return 5 * S


def an_attempt(**more: Any) -> Attempt:
    return Attempt(
        kind=AnswerKind.COMPLETION,
        arrival_ns=0,
        headers={},
        call={},
        answered=lambda error: {"http.response.status_code": error.status},
        **more,
    )


@pytest.fixture
def made() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.close()


def test_without_a_tracer_a_request_goes_on_as_it_came() -> None:
    spans, request = RequestSpans(None), a_request()
    assert spans.begin(request) is request
    spans.ended(request.metadata(), SendFinal(1, "", "stop", Outcome.STOP), 1, 2)
    spans.left(request.id, 2, "why")


def test_a_request_goes_on_in_its_span_and_its_end_is_recorded_once(made: Spans) -> None:
    spans, request = RequestSpans(made.tracer), a_request(arrival_ns=5 * S)
    traced = spans.begin(request)
    assert well_formed(traced.traceparent)
    spans.ended(request.metadata(), SendFinal(3, "", "stop", Outcome.STOP), 6 * S, 9 * S)
    spans.left(request.id, 10 * S, "no client waits for it any more")
    (span,) = made.ended(SPAN)
    assert span.start_time == 5 * S and span.end_time == 9 * S
    assert failed(span) is None
    (recorded,) = made.attributes(SPAN)
    assert recorded["gen_ai.usage.completion_tokens"] == 3
    assert (recorded["gen_ai.latency.time_to_first_token"], recorded["gen_ai.latency.e2e"]) == (1.0, 4.0)
    assert (recorded["qlm.outcome"], recorded["gen_ai.request.id"]) == ("stop", request.id)


@pytest.mark.parametrize(
    ("why", "outcome"), [("the broker is away", ""), ("", "cancelled"), ("no client waits for it", "")]
)
def test_a_request_that_is_left_ends_its_span_with_the_reason(made: Spans, why: str, outcome: str) -> None:
    spans, request = RequestSpans(made.tracer), a_request()
    spans.begin(request)
    spans.left(request.id, S, why, outcome)
    (span,) = made.ended(SPAN)
    assert (failed(span) or "") == why
    assert made.attributes(SPAN)[0].get("qlm.outcome", "") == outcome


def test_an_answer_that_ended_badly_is_a_failed_span(made: Spans) -> None:
    spans, request = RequestSpans(made.tracer), a_request()
    spans.begin(request)
    final = SendFinal(0, "", None, Outcome.ENGINE_LOST, "the engine died")
    spans.ended(request.metadata(), final, None, S)
    assert [failed(span) for span in made.ended(SPAN)] == ["the engine died"]
    assert made.attributes(SPAN)[0]["error.type"] == "engine_lost"


def test_a_request_that_was_not_queued_ends_its_span_once_with_the_error_of_its_client(made: Spans) -> None:
    spans, request = RequestSpans(made.tracer), a_request()
    spans.begin(request)
    attempt = an_attempt(id=request.id)
    with spans.attempting(attempt, At5S()):
        spans.not_queued(request.id, S, AWAY)
        spans.left(request.id, S, "no client waits for it any more")
        spans.refused(attempt, AWAY, 2 * S)
    (span,) = made.ended(SPAN)
    assert (failed(span), span.end_time) == ("the queue is away", 2 * S)
    (recorded,) = made.attributes(SPAN)
    assert (recorded["error.type"], recorded["http.response.status_code"]) == ("broker_unavailable", 503)
    assert (recorded["gen_ai.request.id"], recorded["qlm.outcome"]) == (request.id, "refused")


@pytest.mark.parametrize("attempt", [None, an_attempt(id=RequestId("the first of the family"))])
def test_a_request_that_is_no_attempt_of_its_own_ends_its_span_where_it_was_not_queued(
    made: Spans, attempt: Attempt | None
) -> None:
    spans, request = RequestSpans(made.tracer), a_request()
    spans.begin(request)
    with contextlib.nullcontext() if attempt is None else spans.attempting(attempt, At5S()):
        spans.not_queued(request.id, S, AWAY)
    (span,) = made.ended(SPAN)
    assert (failed(span), span.end_time) == ("the queue is away", S)
    (recorded,) = made.attributes(SPAN)
    assert (recorded["error.type"], recorded["qlm.outcome"]) == ("broker_unavailable", "refused")


def test_an_attempt_that_is_cancelled_before_its_refusal_ends_its_span(made: Spans) -> None:
    spans, request = RequestSpans(made.tracer), a_request()
    spans.begin(request)
    with spans.attempting(an_attempt(id=request.id), At5S()):
        spans.not_queued(request.id, S, AWAY)
        assert not made.ended(SPAN)
    (span,) = made.ended(SPAN)
    assert span.end_time == 5 * S


def test_without_a_tracer_a_refusal_makes_nothing() -> None:
    spans, request = RequestSpans(None), a_request()
    spans.begin(request)
    spans.not_queued(request.id, S, AWAY)
    spans.refused(an_attempt(id=request.id), ApiError(status=429, message="full"), S)


@pytest.mark.parametrize(
    ("recorded", "taken"),
    [
        (PARENT, True),
        (PARENT.replace("00-", "cc-", 1), True),
        (PARENT.replace("00-", "ff-", 1), False),
        (PARENT.upper(), False),
        (f"00-{'0' * 32}-{'b' * 16}-01", False),
        (f"00-{'a' * 32}-{'0' * 16}-01", False),
        (PARENT + "\n", False),
        ("x" * 10_000, False),
        ("", False),
    ],
)
def test_only_a_sound_traceparent_is_continued(recorded: str, taken: bool) -> None:
    assert traceparent({"traceparent": recorded}) == (recorded if taken else "")
