"""The spans of an agent: one wait in the queue, a generation for each leg, in the trace of the request."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qlm.agents.shell.tracing import GENERATION_SPAN, QUEUE_SPAN, GenerationSpan
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.telemetry import Telemetry
from qlm.domain.ports.engine import EngineCall
from qlm.domain.ports.tracing import SpanKind
from qlm.domain.sampling import Sampling
from support.plant import M, plant
from support.requests import a_request
from support.spans import Spans, failed

TRACE, PARENT = "a" * 32, "b" * 16


@pytest.fixture
def made() -> Iterator[Spans]:
    spans = Spans()
    yield spans
    spans.close()


async def test_a_generation_that_breaks_off_ends_and_the_next_goes_on_in_the_same_trace(
    tmp_path: Path, made: Spans
) -> None:
    telemetry = Telemetry(SystemClock(), controller=False, agents=True, tracer=made.tracer)
    now_ns = SystemClock().now_ns()
    request = replace(a_request(arrival_ns=now_ns), traceparent=f"00-{TRACE}-{PARENT}-01")
    async with plant(tmp_path, telemetry=telemetry) as it:
        it.engines[M].tokens_max = 5
        await it.accept(request)
        await it.lose_engine(made=5)
        await it.all_end_exactly_once()
    (waited,) = made.ended(QUEUE_SPAN)
    first, second = made.ended(GENERATION_SPAN)
    for span in (waited, first, second):
        assert span.context is not None and span.parent is not None
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == PARENT
    assert waited.start_time == now_ns
    reported = made.attributes(GENERATION_SPAN)
    assert [each["gen_ai.usage.completion_tokens"] for each in reported] == [5, 3]
    assert [each["gen_ai.usage.prompt_tokens"] for each in reported] == [4, 9]
    # Either its stream breaks, or the agent, told of the death first, stops listening.
    assert (reported[0]["qlm.outcome"], failed(first)) in (("lost", "connection reset"), ("abort", None))
    assert (reported[1]["qlm.outcome"], failed(second)) == ("length", None)
    assert {each["qlm.instance"] for each in reported} == {"i"}


@pytest.mark.parametrize(
    ("finish", "error"),
    [
        *((finish, "why it failed") for finish in ("refused", "lost", "garbled", "media_lost")),
        *((finish, None) for finish in ("stop", "length", "abort")),
    ],
)
def test_a_generation_without_a_good_end_is_traced_as_failed(
    made: Spans, finish: str, error: str | None
) -> None:
    span = made.tracer.begin(GENERATION_SPAN, kind=SpanKind.CLIENT, parent="", at_ns=1, attributes={})
    call = EngineCall(call_id="c", prompt_ids=(1,), sampling=Sampling(max_tokens=1))
    GenerationSpan(call, span, 1).end(finish, "why it failed", 2)
    (ended,) = made.ended(GENERATION_SPAN)
    assert failed(ended) == error
