"""Two agent processes of one instance over RabbitMQ and Redis: one serves, whatever the other does."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from support.cluster import Cluster, cluster
from support.doctor import faults
from support.qlm_process import QlmProcess
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

pytestmark = pytest.mark.servers

INSTANCE = "i0"
PATIENCE_S = 60.0


def config(model: str) -> dict[str, Any]:
    """The configuration of one emulated instance with one model."""
    return {
        "models": [{"id": model, "profile": "mistral-7b", "context_tokens": 4096}],
        "instances": [{"id": INSTANCE, "accelerator": "A100", "models": [model]}],
    }


def wait_until(true: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up, what
        time.sleep(0.05)


def session(parts: Cluster) -> str | None:
    """The session that has the lease of the instance."""
    listed = (
        httpx.get(f"{parts.admin_url}/admin/v1/instances", timeout=120).raise_for_status().json()["instances"]
    )
    return next((each["session"] for each in listed if each["id"] == INSTANCE), None)


def submit(parts: Cluster, model: str, count: int) -> list[str]:
    body = {"model": model, "prompt": "one of many", "max_tokens": 60, "ignore_eos": True}
    ids = []
    for _ in range(count):
        answer = httpx.post(
            f"{parts.url}/v1/completions", json=body, headers={"Prefer": "respond-async"}, timeout=120
        )
        assert answer.status_code == 202, answer.text
        ids.append(answer.json()["id"])
    return ids


def check_all_end(parts: Cluster, ids: list[str]) -> None:
    def outcomes() -> list[str]:
        listed = httpx.get(
            f"{parts.admin_url}/admin/v1/requests", params={"limit": 1000}, timeout=120
        ).json()["requests"]
        found = {each["id"]: each for each in listed}
        assert set(ids) <= set(found)
        for id in ids:
            assert [event["what"] for event in found[id]["events"]].count("ended") <= 1
        return [found[id]["outcome"] for id in ids]

    wait_until(lambda: None not in outcomes(), "all requests end")
    assert set(outcomes()) == {"length"}


@contextmanager
def pair(
    rabbitmq: RabbitMQ, redis_server: RedisServer, folder: Path, models: tuple[str, str]
) -> Iterator[tuple[Cluster, QlmProcess]]:
    """A cluster with one instance, and another agent of it that was not started yet."""
    with cluster(rabbitmq, redis_server, config(models[0]), folder=folder) as parts:
        own = {**parts.agents[INSTANCE].config, **config(models[1]), "data_dir": str(folder / "second")}
        second = QlmProcess("second", "agent", INSTANCE, config=own, folder=folder)
        try:
            yield parts, second
        finally:
            second.close()


@pytest.mark.parametrize("models", [("doubled", "doubled"), ("doubled", "another")])
def test_a_second_agent_is_refused_with_one_line(
    rabbitmq: RabbitMQ, redis_server: RedisServer, tmp_path: Path, models: tuple[str, str]
) -> None:
    with pair(rabbitmq, redis_server, tmp_path, models) as (parts, second):
        first, before = parts.agents[INSTANCE], session(parts)
        ids = submit(parts, models[0], 24)
        second.start()
        wait_until(lambda: second.exit_code is not None, "the second agent ends")
        assert second.exit_code == 1
        (line,) = [line for line in second.log_file.read_text().splitlines() if INSTANCE in line]
        holder = f"process {first.pid} on {socket.gethostname()}, session {before}, since "
        assert f"{INSTANCE} has an agent already: {holder}" in line
        assert session(parts) == before
        assert first.alive
        doubled = faults(parts.admin_url)[f"agents of {INSTANCE}"]
        assert f"process {second.pid} on " in doubled.detail
        assert "stop what starts the second agent" in doubled.remedy
        check_all_end(parts, ids)


def test_doctor_names_an_agent_that_was_killed_and_one_of_another_configuration(
    rabbitmq: RabbitMQ, redis_server: RedisServer, tmp_path: Path
) -> None:
    with pair(rabbitmq, redis_server, tmp_path, ("configured", "another")) as (parts, second):
        lost, other = f"instance {INSTANCE}", f"configuration of {INSTANCE}"
        parts.agents[INSTANCE].kill()
        wait_until(lambda: lost in faults(parts.admin_url), "its agent is found lost")
        found = faults(parts.admin_url)[lost]
        assert found.detail == "it is configured (A100, for configured) and has no live agent"
        assert f"start it again (`qlm agent {INSTANCE}`" in found.remedy
        second.start()
        wait_until(lambda: other in faults(parts.admin_url), "its other configuration is found")
        found = faults(parts.admin_url)[other]
        assert found.detail == ("models of its agent: another, of the gateway's configuration: configured")
        assert "restart those that were started with another" in found.remedy


def test_an_agent_that_was_stopped_ends_when_another_has_taken_over(
    rabbitmq: RabbitMQ, redis_server: RedisServer, tmp_path: Path
) -> None:
    with pair(rabbitmq, redis_server, tmp_path, ("handed-over", "handed-over")) as (parts, second):
        first, before = parts.agents[INSTANCE], session(parts)
        ids = submit(parts, "handed-over", 24)
        os.kill(first.pid, signal.SIGSTOP)
        try:
            second.start()

            def taken_over() -> bool:
                assert second.exit_code is None, second.log()
                return session(parts) not in (None, before)

            wait_until(taken_over, "the second agent has the lease")
            after = session(parts)
        finally:
            os.kill(first.pid, signal.SIGCONT)
        wait_until(lambda: first.exit_code is not None, "the first agent ends")
        assert first.exit_code == 1
        last = first.log_file.read_text().splitlines()[-1]
        assert f"{INSTANCE} was taken over by another agent" in last
        assert f"process {second.pid} on " in last
        check_all_end(parts, ids)
        assert second.alive
        assert session(parts) == after


def test_a_killed_agent_is_followed_at_once_on_its_machine(
    rabbitmq: RabbitMQ, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Its lease, prolonged here beyond the end of this test, is not waited for."""
    with pair(rabbitmq, redis_server, tmp_path, ("killed", "killed")) as (parts, _):
        first, before = parts.agents[INSTANCE], session(parts)
        ids = submit(parts, "killed", 24)
        hour_ms = 3_600_000
        os.kill(first.pid, signal.SIGSTOP)  # so that it does not renew what is prolonged
        with redis.Redis.from_url(redis_server.url) as client:
            row = f"{first.config['deployment_name']}:instance:{INSTANCE}"
            assert client.pexpire(row, hour_ms), "its lease lapsed before it could be prolonged"
            client.hset(row, "lifetime", hour_ms)  # the controller shortens what lives longer than this
        first.kill()
        assert session(parts) == before
        first.start()
        check_all_end(parts, ids)
        assert session(parts) not in (None, before)
        assert "takes over from its former agent, which has ended" in first.log()
