"""The spans of requests: begun once, ended once, whatever becomes of the request."""

from collections.abc import Iterator
from typing import Any

import pytest

from qlm.domain.outcome import Outcome
from qlm.domain.ports.tracing import well_formed
from qlm.domain.request import AnswerKind
from qlm.gateway.errors import ApiError
from qlm.gateway.session_events import SendFinal
from qlm.gateway.tracing import SPAN, Attempt, RequestSpans
from qlm.gateway.translate import traceparent
from support.requests import a_request
from support.spans import Spans, failed

S = 1_000_000_000
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


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
    spans.ended(request.card(), SendFinal(1, "", "stop", Outcome.STOP), 1, 2)
    spans.left(request.id, 2, "why")


def test_a_request_goes_on_in_its_span_and_its_end_is_told_once(made: Spans) -> None:
    spans, request = RequestSpans(made.tracer), a_request(arrival_ns=5 * S)
    traced = spans.begin(request)
    assert well_formed(traced.traceparent)
    spans.ended(request.card(), SendFinal(3, "", "stop", Outcome.STOP), 6 * S, 9 * S)
    spans.left(request.id, 10 * S, "nobody waits for it any more")
    (span,) = made.ended(SPAN)
    assert span.start_time == 5 * S and span.end_time == 9 * S
    assert failed(span) is None
    (told,) = made.attributes(SPAN)
    assert told["gen_ai.usage.completion_tokens"] == 3
    assert (told["gen_ai.latency.time_to_first_token"], told["gen_ai.latency.e2e"]) == (1.0, 4.0)
    assert (told["qlm.outcome"], told["gen_ai.request.id"]) == ("stop", request.id)


@pytest.mark.parametrize(
    ("why", "outcome"), [("the broker is away", ""), ("", "cancelled"), ("nobody waits for it", "")]
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
    spans.ended(request.card(), final, None, S)
    assert [failed(span) for span in made.ended(SPAN)] == ["the engine died"]
    assert made.attributes(SPAN)[0]["error.type"] == "engine_lost"


def test_a_request_that_was_not_queued_ends_its_span_once_with_what_its_client_was_told(made: Spans) -> None:
    spans, request = RequestSpans(made.tracer), a_request()
    spans.begin(request)
    spans.not_queued(request.id)
    spans.left(request.id, S, "nobody waits for it any more")
    error = ApiError(status=503, message="the queue is away", code="broker_unavailable")
    attempt = an_attempt(id=request.id)
    spans.refused(attempt, error, 2 * S)
    (span,) = made.ended(SPAN)
    assert (failed(span), span.end_time) == ("the queue is away", 2 * S)
    (told,) = made.attributes(SPAN)
    assert (told["error.type"], told["http.response.status_code"]) == ("broker_unavailable", 503)
    assert (told["gen_ai.request.id"], told["qlm.outcome"]) == (request.id, "refused")


def test_without_a_tracer_a_refusal_makes_nothing() -> None:
    spans, request = RequestSpans(None), a_request()
    spans.begin(request)
    spans.not_queued(request.id)
    spans.refused(an_attempt(id=request.id), ApiError(status=429, message="full"), S)


@pytest.mark.parametrize(
    ("told", "taken"),
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
def test_only_a_sound_traceparent_is_continued(told: str, taken: bool) -> None:
    assert traceparent({"traceparent": told}) == (told if taken else "")
