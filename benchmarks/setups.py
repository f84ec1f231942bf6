"""Setups of benchmarks: an engine with a fixed 50 ms, and QLM with it on the embedded queue or on servers."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.ports import free_port
from support.process import ServerProcess
from support.qlm_process import QlmProcess
from support.rabbitmq import running_rabbitmq
from support.redis import running_redis

ENGINE_MS = 50
SEQS_MAX = 1024


@contextlib.contextmanager
def fixed_engine() -> Iterator[str]:
    """Run an engine that answers each request after 50 ms; yield its address."""
    with tempfile.TemporaryDirectory(prefix="qlm-bench-") as folder:
        port = free_port()
        argv = [
            sys.executable, "-m", "qlm.simulator.emulation.command",
            "--model", "mistral-7b", "--accelerator", "A100",
            "--fixed-ms", str(ENGINE_MS), "--max-num-seqs", str(SEQS_MAX), "--port", str(port),
        ]  # fmt: skip
        engine = ServerProcess("engine", argv, env=environment(), folder=Path(folder))
        engine.start()
        url = f"http://127.0.0.1:{port}"
        try:
            engine.wait_ready(lambda: answers(f"{url}/health"), timeout_s=30)
            yield url
        finally:
            engine.kill()


@dataclass(frozen=True, kw_only=True)
class Running:
    """QLM while it runs.

    Attributes:
        url: Address of its gateway.
        admin_url: Where its gateway serves operators.
        groups: Process groups of its processes.
        data: Folder of its embedded queue.
        servers: Addresses of RabbitMQ (`broker`) and Redis (`store`), if it uses them.
        processes: Its processes.
        members: All process groups by name, those of RabbitMQ and Redis included, each with the folder of
            its files.
    """

    url: str
    admin_url: str
    groups: Sequence[int]
    data: Path
    servers: Mapping[str, str]
    processes: Sequence[QlmProcess]
    members: Mapping[str, tuple[int, Path]]


@contextlib.contextmanager
def qlm_before(engine_url: str, *, servers: bool) -> Iterator[str]:
    """Run QLM with an engine; yield its address."""
    with qlm_running(engine_url, servers=servers) as running:
        yield running.url


@contextlib.contextmanager
def qlm_running(
    engine_url: str, *, servers: bool, seqs_max: int = SEQS_MAX, more: Mapping[str, Any] | None = None
) -> Iterator[Running]:
    """Run QLM with an engine: in one process on SQLite, or gateway, controller and agent on servers.

    Args:
        engine_url: Address of the engine.
        servers: Run it on RabbitMQ and Redis.
        seqs_max: Requests in the engine's batch at most.
        more: Further keys of its configuration.
    """
    instance = {
        "id": "i0", "accelerator": "A100", "models": ["mistral-7b"], "url": engine_url, "seqs_max": seqs_max
    }  # fmt: skip
    config: dict[str, Any] = {
        "models": [{"id": "mistral-7b", "context_tokens": 4096}],
        "instances": [instance],
        **(more or {}),
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qlm-bench-")))
        server_members: dict[str, tuple[int, Path]] = {}
        addresses = _server_addresses(stack, server_members) if servers else {}
        commands: list[tuple[str, ...]] = [("serve",)]
        if servers:
            commands = [("gateway",), ("controller",), ("agent", "i0")]
        started = _start(stack, folder, config | addresses, commands)
        started[0].wait_ready(instances=1)
        yield Running(
            url=started[0].url,
            admin_url=started[0].admin_url,
            groups=[process.pid for process in started],
            data=folder / commands[0][0],
            servers=addresses,
            processes=started,
            members=server_members | {each.name: (each.pid, folder / each.name) for each in started},
        )


@contextlib.contextmanager
def gateway_alone(*, servers: bool) -> Iterator[str]:
    """Run one gateway process without agents; yield its address."""
    instance = {"id": "i0", "accelerator": "A100", "models": ["mistral-7b"]}
    config: dict[str, Any] = {
        "models": [{"id": "mistral-7b", "context_tokens": 4096}],
        "instances": [instance],
        "limits": {"queue_depth_max": 10_000_000},
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qlm-bench-")))
        if servers:
            config |= _server_addresses(stack)
            (gateway,) = _start(stack, folder, config, [("gateway",)])
        else:
            (gateway,) = _start(stack, folder, config, [("serve", "--no-agents")])
        gateway.wait_ready(instances=0)
        yield gateway.url


def machine() -> str:
    """Return a line with the machine's processor and the date."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = subprocess.run(["nproc"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{cores} cores of {model}, {time.strftime('%Y-%m-%d')}"


def _server_addresses(
    stack: contextlib.ExitStack, members: dict[str, tuple[int, Path]] | None = None
) -> dict[str, str]:
    """Start RabbitMQ and Redis, and add them to `members`."""
    rabbitmq = stack.enter_context(running_rabbitmq())
    redis = stack.enter_context(running_redis())
    if members is not None:
        members |= {"rabbitmq": (rabbitmq.pid, rabbitmq.folder), "redis": (redis.pid, redis.folder)}
    return {"broker": rabbitmq.url, "store": redis.url}


def _start(
    stack: contextlib.ExitStack, folder: Path, config: dict[str, Any], commands: list[tuple[str, ...]]
) -> list[QlmProcess]:
    started = []
    for command in commands:
        whole = config | {"data_dir": str(folder / command[0]), "http": {"port": free_port()}}
        process = QlmProcess(command[0], *command, config=whole, folder=folder)
        process.start()
        stack.callback(process.close)
        started.append(process)
    return started


def answers(url: str) -> bool:
    """Return whether a server answers a GET with 200; an OSError says that none does."""
    with urllib.request.urlopen(url, timeout=2) as answer:
        return bool(answer.status == 200)


def environment() -> dict[str, str]:
    """Return the environment of a server that a benchmark starts."""
    return dict(os.environ)


def save(path: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON, for comparison with later runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
