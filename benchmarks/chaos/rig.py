"""Cluster of a round: two gateways, two controllers, three agents, their engines, RabbitMQ and Redis."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import redis

from benchmarks.chaos.relays import Relays, running_relays
from support.cluster import Cluster, OfPart, cluster
from support.emulated_engine import engine_command
from support.ports import free_port
from support.process import ServerProcess
from support.qlm_process import QLM, QlmProcess
from support.rabbitmq import RabbitMQ
from support.redis import RedisServer

MODEL: Final = "chaos"
PLACES: Final = 16
"""Batch slots of an engine."""

LAUNCHED: Final = ("launched-0", "launched-1")
ATTACHED: Final = "attached"
PREFIX: Final = "qlm:"
READY_S: Final = 180.0
"""Longest start of a process."""

RELAYED: Final = ("gateway-0", "controller", "standby", f"agent-{LAUNCHED[0]}")
"""Processes that reach the servers through relays, where partitions are played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """The processes of one round.

    Attributes:
        parts: Gateways, controllers and agents; two of the agents start their engine.
        redis: Store with an append-only file, synced with each write.
        engine: Engine to which the third instance is attached.
        relays: Relays between some processes and the servers, if it was asked for them.
        gone: Ids of requests that had ended, and whose answers were deleted from Redis.
    """

    parts: Cluster
    rabbitmq: RabbitMQ
    redis: RedisServer
    engine: ServerProcess
    relays: Relays | None = None
    gone: set[str] = field(default_factory=set)

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the gateways."""
        return tuple(gateway.url for gateway in self.parts.gateways)

    @property
    def admin_url(self) -> str:
        """Address at which the first gateway serves operators."""
        return self.parts.admin_url

    @property
    def controllers(self) -> tuple[QlmProcess, QlmProcess]:
        """Both controllers."""
        return self.parts.controller, self.parts.standby

    def leading_controller(self) -> QlmProcess | None:
        """Return the leading controller; None if there is none, or the store cannot say so now."""
        answer = httpx.get(f"{self.admin_url}/admin/v1/controller", timeout=10)
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return None
        leader = answer.raise_for_status().json()["leader"]
        if leader is None:
            return None
        mine = f"{leader['id']} (this one)"
        return next((one for one in self.controllers if mine in one.log_file.read_text("utf-8")), None)

    def wait_whole(self) -> None:
        """Wait until all gateways are ready, all instances have an awake engine and a controller leads.

        Raises:
            RuntimeError: Not in time; its message has the end of a log.
        """
        for gateway in self.parts.gateways:
            gateway.wait_ready(instances=len(self.parts.agents), timeout_s=READY_S)
        until_s = time.monotonic() + READY_S
        while self.leading_controller() is None:
            if time.monotonic() > until_s:
                raise RuntimeError(f"no controller leads after {READY_S:g} s.\n{self.parts.controller.log()}")
            time.sleep(0.1)

    def empty_redis(self) -> None:
        """Delete everything in Redis; note the requests that had ended by then."""
        with contextlib.closing(redis.Redis.from_url(self.redis.url)) as client:
            both = client.pipeline(transaction=True)
            both.lrange(f"{PREFIX}ended", 0, -1)
            both.flushall()
            members = both.execute()[0]
        self.gone.update(member.decode().partition(":")[2] for member in members)


@contextlib.contextmanager
def running_rig(
    folder: Path, of_part: OfPart | None = None, program: Path = QLM, *, relayed: bool = False
) -> Iterator[Rig]:
    """Run the cluster and wait until it is complete.

    Args:
        folder: Folder for logs and data.
        of_part: Derives the configuration of a process from the common one.
        program: The `qlm` that all processes run.
        relayed: Some processes reach RabbitMQ and Redis through relays.
    """
    for name in ("rabbitmq", "redis"):
        (folder / name).mkdir(parents=True)
    port = free_port()
    rabbitmq = RabbitMQ(folder / "rabbitmq")
    store = RedisServer(folder / "redis", appendonly=True)
    command = engine_command(port, MODEL, seqs_max=PLACES)
    engine = ServerProcess("engine", command, env=os.environ, folder=folder)
    with contextlib.ExitStack() as stack:
        for end in (rabbitmq.close, store.kill, engine.kill):
            stack.callback(end)
        rabbitmq.start(timeout_s=READY_S)
        store.start(timeout_s=READY_S)
        engine.start()
        relays = None
        if relayed:
            relays = stack.enter_context(running_relays(RELAYED, rabbitmq.port, store.port, folder))
        parts = stack.enter_context(
            cluster(
                rabbitmq,
                store,
                _config(f"http://127.0.0.1:{port}"),
                gateways=2,
                folder=folder,
                of_part=of_part,
                of_process=relays.config if relays else None,
                program=program,
                name=None,  # not a key of every version that `program` may be
            )
        )
        parts.standby.start()
        rig = Rig(parts=parts, rabbitmq=rabbitmq, redis=store, engine=engine, relays=relays)
        rig.wait_whole()
        yield rig


def _config(engine_url: str) -> dict[str, Any]:
    shared = {"accelerator": "A100", "models": [MODEL], "seqs_max": PLACES}
    return {
        "models": [{"id": MODEL, "profile": "mistral-7b", "context_tokens": 4096}],
        "instances": [
            *({"id": name, **shared} for name in LAUNCHED),
            {"id": ATTACHED, **shared, "url": engine_url},
        ],
        "emulate": {"time_scale": 1.0},
    }
