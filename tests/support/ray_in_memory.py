"""Ray in memory, and a supervisor of agents that works on it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from qlm.agents.core.node_placement import Node
from qlm.agents.ray.cluster import AgentSpec, RayUnavailableError
from qlm.agents.ray.supervisor import Supervisor
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import InstanceId
from qlm.domain.shell.faults import FaultKind, FaultLog
from support.gateway import until

AWAY = StoreUnavailableError("away")

A10 = Node("here", {"accelerator_type:A10": 2})


class Unavailable(Exception):
    pass


class Dead(Unavailable):
    pass


class Call:
    """A method of an actor."""

    def __init__(self, answer: Callable[[], Future[Any]]) -> None:
        self._answer = answer

    def remote(self) -> "Call":
        return self

    def future(self) -> Future[Any]:
        return self._answer()


@dataclass
class Actor:
    """An actor in memory: its calls wait until there is something to answer."""

    config_hash: str
    placed: Future[None] = field(default_factory=Future)
    ended: Future[None] = field(default_factory=Future)
    stopped: bool = False
    watched: int = 0

    def is_watched(self, times: int) -> bool:
        return self.watched == times

    def place(self) -> None:
        self.placed.set_result(None)

    def fail(self, error: Exception) -> None:
        """All calls that wait fail; later ones find it placed and running."""
        waiting, self.ended = self.ended, Future()
        waiting.set_exception(error)

    @property
    def about(self) -> Call:
        return Call(lambda: _after(self.placed, (self.config_hash, 7)))

    @property
    def drained(self) -> Call:
        def answer() -> Future[Any]:
            self.watched += 1
            return _after(self.ended, None)

        return Call(answer)

    @property
    def stop(self) -> Call:
        def answer() -> Future[Any]:
            self.stopped = True
            return _after(self.placed, None)

        return Call(answer)


def _after(event: Future[None], answer: object) -> Future[Any]:
    """A call that is answered, or fails, once something has happened; the caller may cancel it."""
    call: Future[Any] = Future()

    def end(happened: Future[None]) -> None:
        if call.set_running_or_notify_cancel():
            error = happened.exception()
            call.set_exception(error) if error else call.set_result(answer)

    event.add_done_callback(end)
    return call


class Cluster:
    """Ray in memory."""

    actor_dead, actor_unavailable = Dead, Unavailable

    def __init__(self, *nodes: Node, own: bool = False) -> None:
        self.own = own
        self.up = list(nodes)
        self.actors: dict[str, Actor] = {}
        self.killed: list[Actor] = []
        self.made = 0
        self.looked = 0
        self.anew = False

    def check(self) -> None:
        if self.anew:
            raise RayUnavailableError("it has started anew")

    def nodes(self) -> list[Node]:
        self.check()
        self.looked += 1
        return self.up

    def instances(self) -> list[str]:
        return list(self.actors)

    def find(self, instance: str) -> Actor | None:
        return self.actors.get(instance)

    def make(self, spec: AgentSpec) -> Actor:
        if spec.instance not in self.actors:
            self.made += 1
            self.actors[spec.instance] = Actor(spec.config_hash)
        return self.actors[spec.instance]

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor)
        self.actors = {name: each for name, each in self.actors.items() if each is not actor}


async def nothing() -> None:
    """No agent: the actor in memory runs none."""


def spec(instance: str, config_hash: str = "now", *, kind: str = "A10") -> AgentSpec:
    return AgentSpec(
        instance=instance, resources={f"accelerator_type:{kind}": 1}, work=nothing, config_hash=config_hash
    )


class Run:
    """A supervisor at work."""

    def __init__(
        self, cluster: Cluster, *specs: AgentSpec, drains: bool = True, first_report: Exception = AWAY
    ) -> None:
        self.asked: list[str] = []
        self._first_report = first_report
        self._cluster = cluster
        self._drains = drains
        made: Any = cluster
        self.unplaced: dict[str, str] = {}
        self.faults: list[FaultKind] = []
        log = FaultLog(self.faults.append)
        supervisor = Supervisor(made, specs, self.ask_drain, self.report_unplaced, log)
        self.task = asyncio.create_task(supervisor.run())

    async def report_unplaced(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        self.unplaced[instance] = why
        if len(self.unplaced) == 1:
            raise self._first_report

    async def ask_drain(self, instance: InstanceId) -> bool:
        self.asked.append(instance)
        if self._drains:
            self._cluster.actors[instance].ended.set_result(None)
        return self._drains

    async def stop(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def placed(cluster: Cluster, instance: str) -> Actor:
    await until(lambda: instance in cluster.actors)
    actor = cluster.actors[instance]
    actor.place()
    return actor
