"""One process with all parts, watched from outside: its metrics, its spans, its log."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.exposition import problems, read, value
from support.gateway import until
from support.otlp import Collector, Seen, collecting
from support.ports import free_port
from support.qlm_process import QlmProcess, emulated

MODEL = "mistral-7b"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def serving(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[QlmProcess]:
    """`qlm serve` with an emulated instance, that traces, and logs JSON."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    config = emulated(
        MODEL,
        time_scale=0.05,
        http={"port": free_port()},
        data_dir=str(tmp_path / "data"),
        tracing={"endpoint": collector.url},
    )
    process = QlmProcess("serve", "serve", "--log-format", "json", config=config, folder=tmp_path)
    process.start()
    try:
        process.wait_ready(instances=1)
        yield process
    finally:
        process.terminate()


def complete(url: str, **headers: str) -> httpx.Response:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 5, "slo": {"deadline_ms": 60_000}}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def scrape(url: str) -> str:
    return httpx.get(f"{url}/metrics").text


async def test_a_request_is_one_trace_from_its_client_to_its_engine(
    serving: QlmProcess, collector: Collector
) -> None:
    trace, client = secrets.token_hex(16), secrets.token_hex(8)
    answer = complete(serving.url, traceparent=f"00-{trace}-{client}-01")
    await until(lambda: len(collector.of(trace)) == 4, timeout_s=30)
    spans = collector.of(trace)
    request, generation, engine = spans["qlm.request"], spans["qlm.generation"], spans["llm_request"]
    assert request.parent == client
    assert (generation.parent, spans["qlm.queue"].parent) == (request.id, request.id)
    assert engine.parent == generation.id
    assert (request.service, engine.service) == ("qlm-serve", "qlm-engine")
    for span in (request, generation):
        assert span.attributes["gen_ai.request.model"] == MODEL
        assert span.attributes["gen_ai.request.id"] == answer.headers["x-request-id"]
    for span in (request, generation, engine):
        assert span.attributes["gen_ai.usage.prompt_tokens"] == 5
        assert span.attributes["gen_ai.usage.completion_tokens"] == 5
        assert span.attributes["gen_ai.latency.time_to_first_token"] > 0
        assert 0 < span.attributes["gen_ai.latency.e2e"] <= request.seconds + 0.1
    assert spans["qlm.queue"].seconds <= request.seconds
    assert not any(span.failed for span in spans.values())


async def test_a_client_that_traces_nothing_begins_a_trace_here(
    serving: QlmProcess, collector: Collector
) -> None:
    id = complete(serving.url, traceparent="not a traceparent").headers["x-request-id"]

    def mine() -> dict[str, Seen]:
        return {s.name: s for s in collector.spans if s.attributes.get("gen_ai.request.id") == id}

    await until(lambda: mine().keys() >= {"qlm.request", "qlm.queue", "qlm.generation"}, timeout_s=30)
    assert mine()["qlm.request"].parent == ""
    assert len({span.trace for span in mine().values()}) == 1


async def test_one_exposition_tells_of_all_parts_and_its_log_is_json(serving: QlmProcess) -> None:
    complete(serving.url)
    text = scrape(serving.admin_url)
    assert problems(text) == []
    assert value(text, "qlm_gateway_requests_total", model=MODEL, outcome="length") == 1
    assert value(text, "qlm_agent_request_queue_duration_seconds_count", model=MODEL, qlm_instance="i0") == 1
    assert value(text, "qlm_controller_leader") == 1
    await until(lambda: value(scrape(serving.admin_url), "qlm_broker_up") == 1)
    assert "process_cpu_seconds_total" in read(text)
    lines = [json.loads(line) for line in serving.log_file.read_text("utf-8").splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert any(line["logger"] == "qlm.cli" and line["level"] == "info" for line in lines)
