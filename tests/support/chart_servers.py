"""Containers of a rendered chart as processes: RabbitMQ, Redis, and what runs an image of QLM's."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import pika
import pytest
import redis
from pika.exceptions import AMQPError

from support import rabbitmq as rabbitmq_support
from support import redis as redis_support
from support.chart_processes import Place
from support.images import environment_of
from support.needs import need
from support.ports import free_port
from support.process import ServerProcess

PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin"
READY_S = 300


def need_servers() -> None:
    """Skip without RabbitMQ and Redis, or fail where they have to be."""
    need(rabbitmq_support.missing() or redis_support.missing())


def start_redis(place: Place, stack: ExitStack) -> None:
    """Run Redis as the chart tells it to."""
    env = {"PATH": PATH, **place.environment}
    server = ServerProcess("redis", place.command, env=env, folder=place.home)
    stack.callback(server.kill)
    server.start()
    client = redis.Redis(port=place.port, password=env["REDIS_PASSWORD"])
    stack.callback(client.close)

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False

    server.wait_ready(answers, timeout_s=READY_S)
    with pytest.raises(redis.AuthenticationError):
        redis.Redis(port=place.port).ping()
    assert client.config_get("appendonly") == {"appendonly": "yes"}


def start_rabbitmq(place: Place, stack: ExitStack) -> None:
    """Run the node of the chart with what keeps it on loopback; the image's entry point only starts it."""
    epmd_port = free_port()
    reported = place.environment
    reported.pop("HOME"), reported.pop("RABBITMQ_NODENAME")
    env = rabbitmq_support.node_environment(place.home, place.port, epmd_port) | reported
    epmd = [str(rabbitmq_support.program("epmd")), "-address", "127.0.0.1", "-port", str(epmd_port)]
    mapper = ServerProcess("epmd", epmd, env=env, folder=place.home)
    assert place.command == ["rabbitmq-server"]
    program = str(rabbitmq_support.program("rabbitmq-server"))
    node = ServerProcess("rabbitmq", [program], env=env, folder=place.home)
    for process in (mapper, node):
        stack.callback(process.kill)
        process.start()
    login = pika.PlainCredentials("qlm", reported["RABBITMQ_DEFAULT_PASS"])

    def answers() -> bool:
        try:
            pika.BlockingConnection(pika.ConnectionParameters(port=place.port, credentials=login)).close()
        except AMQPError:
            return False
        return True

    node.wait_ready(answers, timeout_s=READY_S)


def start(place: Place, stack: ExitStack) -> ServerProcess:
    """Start the process of a container, which finds what its image has."""
    env = container_environment(place)
    process = ServerProcess("container", place.command, env=env, folder=place.home)
    stack.callback(process.kill)
    process.start()
    return process


def container_environment(place: Place) -> dict[str, str]:
    """Return what a program in a container has in its environment."""
    image = str(place.pod.container["image"]).removeprefix("qlm-").partition(":")[0]
    hiding = environment_of(image, place.home)
    kept = {
        name: hiding[name] for name in ("PYTHONPATH", "QLM_TEST_ABSENT_MODULES", "LANG") if name in hiding
    }
    return {"PATH": PATH, "HOME": str(place.home / "var/lib/qlm"), **kept, **place.environment}
