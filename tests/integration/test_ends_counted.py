"""Ends of requests in the metrics of the gateway whose client left them, and went on here or elsewhere."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from qlm.domain.ids import GatewayId
from qlm.domain.outcome import Outcome
from qlm.gateway.api.schema import parse_completion
from qlm.gateway.core.session import Mode
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.http.sinks import WholeSink
from qlm.gateway.sessions.gateway import Gateway, create_gateway
from qlm.gateway.sessions.resume import resume
from qlm.gateway.sessions.sink import NoSink
from qlm.gateway.sessions.subscription import Subscription
from support.gateway import Cluster, running_cluster, until

ASKED: dict[str, Any] = {
    "model": "emulated", "prompt": "Hi", "stream": True, "resume_grace_s": 0.1, "slo": {"deadline_ms": 60000}
}  # fmt: skip
LONG_S = 60.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        running.agent.pause_at = 6
        yield running


@contextlib.asynccontextmanager
async def opened(cluster: Cluster, name: str) -> AsyncIterator[Gateway]:
    made = create_gateway(cluster.parts(name))
    async with made.running():
        yield made


async def streamed(gateway: Gateway) -> Subscription:
    """Return the stream of a new request whose client may disconnect for 0.1 s."""
    prepared = await gateway.intake.prepare(parse_completion(ASKED), ASKED, {}, returns=True)
    return await gateway.intake.accept(prepared, NoSink(), Mode.STREAM)


async def outcome_of(sink: WholeSink) -> Outcome | None:
    """Wait for the end of an answer; return its outcome."""
    final = await sink.wait()
    return final.outcome if isinstance(final, SendFinal) else None


def count(gateway: Gateway, name: str, **labels: str) -> float:
    """Return the sum of a metric over its labels, some of them given."""
    samples = (each for family in gateway.metrics.registry.collect() for each in family.samples)
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


ends = partial(count, name="qlm_gateway_requests_total")


async def test_the_end_of_a_stream_that_is_resumed_here_counts_once(cluster: Cluster) -> None:
    async with opened(cluster, "here") as gateway:
        first = await streamed(gateway)
        await until(lambda: first.session.times.last_ns)
        gateway.hub.detach(first)
        sink = WholeSink()
        resume(gateway.hub, first.metadata, sink, 3, LONG_S)
        await until(lambda: first.session.over)
        cluster.agent.go.set()
        assert await outcome_of(sink) is Outcome.STOP
        assert ends(gateway) == ends(gateway, outcome="stop") == 1
        assert count(gateway, "qlm_gateway_request_slo_attained_total") == 1
        assert count(gateway, "qlm_gateway_tokens_total", side="completion") == len("Hello, world!") + 1
        assert count(gateway, "qlm_gateway_time_to_first_token_seconds_count") == 1


async def test_a_stream_that_is_resumed_elsewhere_does_not_count_as_cancelled(cluster: Cluster) -> None:
    async with opened(cluster, "here") as gateway, opened(cluster, "elsewhere") as other:
        first = await streamed(gateway)
        await until(lambda: first.session.times.last_ns)
        resumed = resume(other.hub, first.metadata, sink := WholeSink(), 0, LONG_S)
        await until(lambda: resumed.session.times.last_ns)
        gateway.hub.detach(first, for_good=True)

        async def left() -> bool:
            return await cluster.store.unwatch(first.metadata.id, GatewayId("nobody")) == 1

        await until(left)
        cluster.agent.go.set()
        assert await outcome_of(sink) is Outcome.STOP
        assert ends(gateway) == 0


async def test_a_stream_that_nobody_resumes_counts_as_cancelled(cluster: Cluster) -> None:
    async with opened(cluster, "here") as gateway:
        first = await streamed(gateway)
        gateway.hub.detach(first)
        await until(lambda: ends(gateway))
        assert ends(gateway, outcome="cancelled") == 1
        record = await cluster.store.record(first.metadata.id)
        assert record is not None and Outcome.CANCELLED in (record.outcome, record.end_asked)
