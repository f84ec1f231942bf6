"""Kinds `write` and `alarm`: Redis that answers but refuses writes, RabbitMQ that blocks publishers."""

import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import redis

from benchmarks.chaos.faults.fault import Hit, Kind, last_a_while, waited
from benchmarks.chaos.rig import Rig
from support.rabbitmq import MEMORY_MAX

SAVED_S: Final = 20.0
ALARM_S: Final = 20.0


@contextlib.contextmanager
def noreplicas(rig: Rig) -> Iterator[None]:
    """Require a replica that does not exist: NOREPLICAS."""
    with contextlib.closing(redis.Redis.from_url(rig.redis.url)) as client:
        client.config_set("min-replicas-to-write", 1)
        yield
        client.config_set("min-replicas-to-write", 0)


@contextlib.contextmanager
def readonly(rig: Rig) -> Iterator[None]:
    """Make Redis the replica of a server that does not exist: READONLY."""
    with contextlib.closing(redis.Redis.from_url(rig.redis.url)) as client:
        client.replicaof("127.0.0.1", "1")
        yield
        client.replicaof("NO", "ONE")


@contextlib.contextmanager
def memory(rig: Rig) -> Iterator[None]:
    """Leave Redis no memory: OOM."""
    with contextlib.closing(redis.Redis.from_url(rig.redis.url)) as client:
        before: Any = client.config_get("maxmemory")
        client.config_set("maxmemory", "1mb")
        yield
        client.config_set("maxmemory", before["maxmemory"])


@contextlib.contextmanager
def misconf(rig: Rig) -> Iterator[None]:
    """Let a snapshot fail, as with a full disk: MISCONF."""
    in_the_way = rig.redis.folder / "dump.rdb"
    with contextlib.closing(redis.Redis.from_url(rig.redis.url)) as client:
        in_the_way.unlink(missing_ok=True)
        (in_the_way / "full").mkdir(parents=True)
        client.config_set("save", "86400 1000000")
        client.bgsave()
        assert waited(lambda: _save_failed(client), SAVED_S)
        yield
        client.config_set("save", "")
        (in_the_way / "full").rmdir()
        in_the_way.rmdir()


def _save_failed(client: redis.Redis) -> bool:
    info: Any = client.info("persistence")
    return bool(info["rdb_last_bgsave_status"] == "err")


@contextlib.contextmanager
def memory_alarm(rig: Rig) -> Iterator[None]:
    """Raise RabbitMQ's memory alarm."""
    with _raised(rig, "memory"):
        rig.rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1MB")
    yield
    rig.rabbitmq.control("set_vm_memory_high_watermark", "absolute", MEMORY_MAX)


@contextlib.contextmanager
def disk_alarm(rig: Rig) -> Iterator[None]:
    """Raise RabbitMQ's disk alarm, as with a full disk."""
    with _raised(rig, "disk"):
        rig.rabbitmq.control("set_disk_free_limit", "1000000GB")
    yield
    rig.rabbitmq.control("set_disk_free_limit", "50MB")


@contextlib.contextmanager
def _raised(rig: Rig, resource: str) -> Iterator[None]:
    """Wait after the block until RabbitMQ has logged an alarm for a resource."""
    said = f"{resource} resource limit alarm set"
    before = rig.rabbitmq.log().count(said)
    yield
    if not waited(lambda: rig.rabbitmq.log().count(said) > before, ALARM_S):
        raise RuntimeError(f"RabbitMQ raised no {resource} alarm")


State = Callable[[Rig], AbstractContextManager[None]]


def strike(state: State, rig: Rig, rng: random.Random) -> Hit:
    """Hold a server in a state for a while."""
    with state(rig):
        last_a_while(rng)
    return Hit(target=state.__name__.replace("_", " "))


SERVERS: Final = (
    *(
        Kind(name=f"redis-{state.__name__}", group="write", strike=partial(strike, state))
        for state in (noreplicas, readonly, memory, misconf)
    ),
    Kind(name="rabbitmq-memory", group="alarm", strike=partial(strike, memory_alarm)),
    Kind(name="rabbitmq-disk", group="alarm", strike=partial(strike, disk_alarm)),
)
