"""A real Prometheus watches a cluster of processes: metrics, alert rules, the dashboard's queries."""

import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from support.cluster import Cluster, cluster
from support.exposition import problems, value
from support.monitoring_files import queries
from support.otlp import Collector, collecting
from support.ports import free_port
from support.prometheus import Prometheus, promtool
from support.qlm_process import QlmProcess, emulated
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

RULES = Path(__file__).resolve().parents[2] / "monitoring/alerts.yaml"
MODEL = "llama-3-8b"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def running(rabbitmq: RabbitMQ, redis_server: RedisServer, collector: Collector) -> Iterator[Cluster]:
    config = emulated(
        MODEL, time_scale=0.1, monitor={"port": free_port()}, tracing={"endpoint": collector.url}
    )
    with cluster(rabbitmq, redis_server, config) as made:
        yield made


def addresses(running: Cluster) -> dict[str, str]:
    """Where each process tells of itself."""
    gateway, controller, agent = running.gateways[0], running.controller, running.agents["i0"]
    return {
        "gateway": gateway.admin_url.removeprefix("http://"),
        "controller": monitored(controller),
        "agent": monitored(agent),
    }


def monitored(process: QlmProcess) -> str:
    found = re.search(r"metrics and health are on http://(\S+)", process.log_file.read_text("utf-8"))
    assert found is not None, process.log()
    return found[1]


def wait(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "it did not come to be"
        time.sleep(0.1)


def test_every_process_is_ready_and_tells_what_promtool_accepts(running: Cluster) -> None:
    reported = {}
    for part, address in addresses(running).items():
        assert httpx.get(f"http://{address}/readyz", timeout=120).json()["status"] == "ok"
        assert httpx.get(f"http://{address}/healthz", timeout=120).json() == {"status": "ok"}
        reported[part] = httpx.get(f"http://{address}/metrics", timeout=120).text
        assert problems(reported[part]) == []
    assert httpx.get(f"http://{addresses(running)['agent']}/readyz", timeout=120).json()["i0"] == "ok"
    assert value(reported["controller"], "qlm_controller_live_instances", accelerator="A100") == 1
    assert (
        value(reported["agent"], "qlm_agent_engine_state", model=MODEL, state="awake", qlm_instance="i0") == 1
    )


def test_prometheus_scrapes_all_and_evaluates_rules_and_the_dashboard(
    running: Cluster, start_prometheus: Callable[..., AbstractContextManager[Prometheus]]
) -> None:
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 5, "slo": {"deadline_ms": 60_000}}
    assert httpx.post(f"{running.url}/v1/completions", json=body, timeout=120).status_code == 200
    targets = addresses(running)
    for address in targets.values():
        assert (
            promtool("check", "metrics", text=httpx.get(f"http://{address}/metrics", timeout=120).text) == ""
        )
    assert promtool("check", "rules", str(RULES)) == ""
    with start_prometheus(targets, RULES) as prometheus:
        wait(lambda: len(prometheus.query("up == 1")) == len(targets))
        wait(lambda: prometheus.query("qlm_controller_leader == 1"))
        by_part = {
            "gateway": "qlm_gateway_request_slo_attained_total == 1",
            "controller": "qlm_controller_recommended_instances == 1",
            "agent": "qlm_agent_request_queue_duration_seconds_count == 1",
        }
        for part, query in by_part.items():
            (found,) = prometheus.query(query)
            assert found["metric"]["job"] == part
        assert len(prometheus.query("qlm_broker_up == 1")) == len(targets)
        for query in queries():
            prometheus.query(
                query.replace("$__rate_interval", "1m").replace("$model", ".*").replace("$namespace", ".*")
            )
        wait(lambda: all(rule["health"] == "ok" for rule in prometheus.rules()))
        assert [rule["name"] for rule in prometheus.rules() if rule["state"] == "firing"] == []


def test_alerts_fire_when_something_is_wrong_and_only_then(start_prometheus: object) -> None:
    assert promtool("test", "rules", str(RULES.with_name("alerts_test.yaml"))) == ""


def test_a_trace_crosses_all_processes(running: Cluster, collector: Collector) -> None:
    trace = secrets.token_hex(16)
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 5}
    headers = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-01"}
    assert httpx.post(f"{running.url}/v1/completions", json=body, headers=headers, timeout=120).is_success
    wait(lambda: len(collector.of(trace)) == 4, timeout_s=60)
    assert {span.name: span.service for span in collector.of(trace).values()} == {
        "qlm.request": "qlm-gateway",
        "qlm.queue": "qlm-agent",
        "qlm.generation": "qlm-agent",
        "llm_request": "qlm-engine",
    }
