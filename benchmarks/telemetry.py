"""Processor time of telemetry per request: `python -m benchmarks telemetry`.

Measured are a gateway's span of a request and of a refusal (tracing off, on but not sampled, on); the wait
that an agent records per request; a store call with and without counted failures; and a scrape of a process
with controller and agent.
"""

import argparse
import asyncio
import time
from collections.abc import Callable

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from qlm.agents.shell.metrics import AgentMetrics
from qlm.agents.shell.otlp import OtelTracer
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.health import counted_store
from qlm.cli.runtime.telemetry import Telemetry
from qlm.domain.outcome import Outcome
from qlm.domain.request import AnswerKind
from qlm.gateway.api.errors import ApiError
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.observability.tracing import Attempt, RequestSpans
from qlm.store.embedded.memory import MemoryStore
from support.agent_bench import HOLDER, Bench
from support.requests import a_request

ROUNDS = 5
REQUEST = a_request(deadline_ms=1000.0)


def main(arguments: list[str]) -> int:
    """Measure and print microseconds of processor time."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=telemetry", description=__doc__)
    parser.add_argument("--times", type=int, default=20_000)
    times = parser.parse_args(arguments).times
    _show("span of a request, off", _each_us(_span(RequestSpans(None)), times))
    _show("span of a refusal, off", _each_us(_refusal(RequestSpans(None)), times))
    for sample, words in ((0.0, "not sampled"), (1.0, "sent")):
        tracer = OtelTracer(InMemorySpanExporter(), sample, "benchmark")
        _show(f"span of a request, {words}", _each_us(_span(RequestSpans(tracer)), times // 10))
        _show(f"span of a refusal, {words}", _each_us(_refusal(RequestSpans(tracer)), times // 10))
        tracer.close()
    agent = Bench()
    agent.start(REQUEST)
    tracked, metrics = agent.agent.state.requests.all[REQUEST.id], AgentMetrics(CollectorRegistry())
    _show(
        "wait of a request, noted", _each_us(lambda: metrics.submitted(tracked, HOLDER.instance, 10), times)
    )
    store = MemoryStore(SystemClock())
    telemetry = Telemetry(SystemClock(), controller=True, agents=True)
    for words, one in (("as it is", store), ("counted", counted_store(store, telemetry.health))):
        _show(f"a call of the store, {words}", min(asyncio.run(_calls_us(one, times)) for _ in range(ROUNDS)))
    with telemetry.agent(agent.agent):
        _show("a scrape", _each_us(lambda: generate_latest(telemetry.registry), times // 1000))
    return 0


def _span(spans: RequestSpans) -> Callable[[], None]:
    metadata, final = REQUEST.metadata(), SendFinal(8, "", "stop", Outcome.STOP)

    def one() -> None:
        spans.begin(REQUEST)
        spans.ended(metadata, final, 5, 10)

    return one


def _refusal(spans: RequestSpans) -> Callable[[], None]:
    error = ApiError(status=429, message="100 requests wait", code="queue_full")

    def one() -> None:
        attempt = Attempt(
            kind=AnswerKind.CHAT,
            arrival_ns=1,
            headers={},
            call={"http.request.method": "POST", "http.route": "/v1/chat/completions"},
            answered=lambda error: {"http.response.status_code": error.status},
            model="m",
        )
        spans.refused(attempt, error, 2)

    return one


def _each_us(work: Callable[[], object], times: int) -> float:
    return min(_round_us(work, times) for _ in range(ROUNDS))


def _round_us(work: Callable[[], object], times: int) -> float:
    began_s = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began_s) / times * 1e6


async def _calls_us(store: MemoryStore, times: int) -> float:
    began_s = time.process_time()
    for _ in range(times):
        await store.incarnation()
    return (time.process_time() - began_s) / times * 1e6


def _show(what: str, each_us: float) -> None:
    print(f"{what:32} {each_us:8.2f} us", flush=True)
