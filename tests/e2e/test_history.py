"""A controller is killed after it has learned: the next one knows what it knew."""

import re
import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis

from qlm.controller.core.history.codec import history_from_plain
from support.cluster import Cluster, cluster
from support.exposition import value
from support.flaky import wait_until
from support.ports import free_port
from support.qlm_process import QlmProcess, emulated
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

pytestmark = pytest.mark.servers

MODEL = "mistral-7b"
NAME = f"history-{secrets.token_hex(4)}"
ANSWERS, TOKENS = 20, 7


@pytest.fixture(scope="module")
def running(rabbitmq: RabbitMQ, redis_server: RedisServer) -> Iterator[Cluster]:
    config = emulated(MODEL, time_scale=0.1, monitor={"port": free_port()})
    with cluster(rabbitmq, redis_server, config, name=NAME) as made:
        yield made


def known_answers(controller: QlmProcess, lives: int) -> float:
    """Return how many answers of the model a controller in its last life knows; 0 before it plans."""
    addresses = re.findall(r"metrics and health are on http://(\S+)", controller.log())
    if len(addresses) < lives:
        return 0.0
    try:
        return value(
            httpx.get(f"http://{addresses[-1]}/metrics", timeout=120).text,
            "qlm_controller_known_answers",
            model=MODEL,
        )
    except (KeyError, httpx.HTTPError):
        return 0.0


def answered(url: str) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": "Hi", "max_tokens": TOKENS, "ignore_eos": True}
    body["slo"] = {"deadline_ms": 60_000}
    for _ in range(ANSWERS):
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=120).status_code == 200


def test_the_next_controller_knows_the_lengths_that_a_killed_one_had_learned(
    running: Cluster, redis_server: RedisServer
) -> None:
    """The class is idle when the next one starts, so its views show no answers."""
    answered(running.url)
    url = f"{running.admin_url}/admin/v1/history"

    def is_kept() -> bool:
        answer = httpx.get(url, timeout=120)
        if answer.status_code != 200:
            return False
        classes = history_from_plain(answer.json()).classes.values()
        return sum(record.former_answers for record in classes) > ANSWERS - 0.5

    wait_until(is_kept, "the history is kept")
    kept = httpx.get(url, timeout=120).content
    running.controller.kill()
    assert httpx.get(url, timeout=120).content == kept
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.delete(f"{NAME}:classes") == 1
    running.controller.start()
    wait_until(lambda: known_answers(running.controller, 2) >= ANSWERS, "it knows the answers")
    running.controller.terminate()
    assert httpx.get(url, timeout=120).content != kept, "it keeps what it knows at its end"
    (record,) = history_from_plain(httpx.get(url, timeout=120).json()).classes.values()
    assert record.counts.answers == pytest.approx(ANSWERS)
    assert record.counts.all_tokens == pytest.approx(ANSWERS * TOKENS, rel=0.2)
