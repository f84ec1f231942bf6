"""The real servers behave as the harness promises: they answer, survive a crash, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
import redis

from support.rabbitmq import RabbitMQ
from support.redis import RedisServer
from support.vllm_cpu import VllmServer
from support.watchdog import group_members

TESTS = Path(__file__).resolve().parents[1]
PROMPT = "The request waits in the queue"


def test_rabbitmq_keeps_a_confirmed_message_over_a_crash(start_rabbitmq: Callable[..., RabbitMQ]) -> None:
    node = start_rabbitmq()
    with pika.BlockingConnection(pika.URLParameters(node.url)) as before:
        channel = before.channel()
        channel.queue_declare("work", durable=True)
        node.sync_declarations()
        channel.confirm_delivery()
        persistent = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent.value)
        channel.basic_publish("", "work", b"first", properties=persistent, mandatory=True)

    node.kill()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(node.url))
    node.start()

    with pika.BlockingConnection(pika.URLParameters(node.url)) as after:
        _, _, body = after.channel().basic_get("work", auto_ack=True)
    assert body == b"first"


def test_rabbitmq_closes_the_channel_of_a_late_acknowledgement(
    start_rabbitmq: Callable[..., RabbitMQ],
) -> None:
    node = start_rabbitmq(consumer_timeout_ms=1_000)
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("work", durable=True)
        channel.basic_publish("", "work", b"slow")
        channel.basic_consume("work", lambda *delivery: None)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="timeout"):
            channel.start_consuming()


def test_redis_keeps_a_synced_write_over_a_crash(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(appendonly=True)
    with redis.Redis.from_url(server.url) as client:
        client.set("lease", "7")

    server.kill()
    server.start()

    with redis.Redis.from_url(server.url) as client:
        assert client.get("lease") == b"7"


def test_the_shared_servers_answer(rabbitmq: RabbitMQ, redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.ping()
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        assert connection.is_open


def test_vllm_answers_the_same_twice(vllm_server: VllmServer) -> None:
    first = _complete(vllm_server.base_url)
    assert len(first) == 16
    assert _complete(vllm_server.base_url) == first


PLAIN_SERVER = """
import time
from support.vllm_cpu import VllmOptions, running_vllm
with running_vllm(VllmOptions(plain=True)) as server:
    print(server.process.pid, server.base_url, flush=True)
    time.sleep(3600)
"""


def test_plain_vllm_serve_agrees_and_dies_with_the_test_run(vllm_server: VllmServer, tmp_path: Path) -> None:
    shared_memory = set(Path("/dev/shm").iterdir())
    harness = subprocess.Popen(
        [sys.executable, "-c", PLAIN_SERVER],
        env={**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert harness.stdout is not None
        group, base_url = harness.stdout.readline().split()
        assert _complete(base_url) == _complete(vllm_server.base_url)
        assert len(group_members(int(group))) >= 3  # server, engine, worker
    finally:
        harness.send_signal(signal.SIGKILL)
        harness.communicate()

    gone_by = time.monotonic() + 10
    while members := group_members(int(group)):
        assert time.monotonic() < gone_by, f"still alive after the test run died: {members}"
    while left := set(Path("/dev/shm").glob("psm_*")) - shared_memory:
        assert time.monotonic() < gone_by, f"not freed after the test run died: {left}"


def _complete(base_url: str) -> list[int]:
    body = {
        "model": "tiny",
        "prompt": PROMPT,
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"{base_url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        ids: list[int] = json.load(answer)["choices"][0]["token_ids"]
    return ids
