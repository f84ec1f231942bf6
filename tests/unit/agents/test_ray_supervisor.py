"""Supervisor of Ray agents, with missing, outdated, unavailable and dead actors; Ray is in memory.

`tests/e2e/test_ray.py` and `test_ray_cluster.py` show the usual way on a real Ray.
"""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from qlm.agents.core.node_placement import Node
from qlm.agents.ray import supervisor as supervising
from qlm.agents.ray.cluster import AgentSpec, RayUnavailableError
from qlm.agents.ray.supervisor import NoPlaceError, Supervisor
from qlm.domain.errors import StoreUnavailableError
from qlm.domain.ids import InstanceId
from support.gateway import until

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

    def __init__(self, cluster: Cluster, *specs: AgentSpec, drains: bool = True) -> None:
        self.asked: list[str] = []
        self._cluster = cluster
        self._drains = drains
        made: Any = cluster
        self.unplaced: dict[str, str] = {}
        supervisor = Supervisor(made, specs, self.ask_drain, self.report_unplaced)
        self.task = asyncio.create_task(supervisor.run())

    async def report_unplaced(self, instance: InstanceId, why: str, ttl_s: float) -> None:
        self.unplaced[instance] = why
        if len(self.unplaced) == 1:
            raise StoreUnavailableError("away")

    async def ask_drain(self, instance: InstanceId) -> bool:
        self.asked.append(instance)
        if self._drains:
            self._cluster.actors[instance].ended.set_result(None)
        return self._drains

    async def stop(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervising, "RETRY_S", 0.0)
    monkeypatch.setattr(supervising, "PLACEMENT_CHECK_S", 0.01)


async def placed(cluster: Cluster, instance: str) -> Actor:
    await until(lambda: instance in cluster.actors)
    actor = cluster.actors[instance]
    actor.place()
    return actor


async def test_stopping_drains_what_runs_and_ends_what_never_found_a_place() -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"), spec("b", kind="H100"))
    first = await placed(cluster, "a")
    await until(lambda: len(cluster.actors) == 2)
    await until(lambda: first.watched)
    second = cluster.actors["b"]
    await run.stop()
    assert run.asked == ["a"]
    assert (first.stopped, second.stopped) == (False, False)
    assert {id(each) for each in cluster.killed} == {id(first), id(second)}


async def test_one_that_is_not_alive_to_be_drained_is_stopped_before_its_actor_ends() -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"), drains=False)
    actor = await placed(cluster, "a")
    await until(lambda: actor.watched)
    await run.stop()
    assert (run.asked, actor.stopped, cluster.killed) == (["a"], True, [actor])


async def test_an_instance_that_an_operator_drains_stays_away() -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"))
    actor = await placed(cluster, "a")
    actor.ended.set_result(None)
    await run.task
    assert (cluster.killed, cluster.made, run.asked) == ([actor], 1, [])


async def test_what_a_former_supervisor_left_is_kept_replaced_or_retired_by_its_recipe() -> None:
    cluster = Cluster(A10)
    same, other, former = Actor("now"), Actor("then"), Actor("now")
    cluster.actors = {"same": same, "other": other, "former": former}
    for actor in cluster.actors.values():
        actor.place()
    run = Run(cluster, spec("same"), spec("other"))
    await until(lambda: cluster.actors.get("other") not in (None, other))
    assert cluster.actors["same"] is same
    assert "former" not in cluster.actors
    assert {id(each) for each in cluster.killed} == {id(other), id(former)}
    assert sorted(run.asked) == ["former", "other"]
    await until(lambda: same.watched)
    await run.stop()


async def test_ray_is_left_to_restart_and_one_that_is_dead_for_good_is_made_anew() -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"))
    actor = await placed(cluster, "a")
    for times in range(1, 4):
        await until(functools.partial(actor.is_watched, times))
        actor.fail(Unavailable("its process died"))
    await until(lambda: actor.watched == 4)
    assert (cluster.made, cluster.actors["a"]) == (1, actor)
    del cluster.actors["a"]
    actor.fail(Dead("killed by somebody\n\nfor good"))
    again = await placed(cluster, "a")
    assert (cluster.made, again is actor) == (2, False)
    await run.stop()


async def test_on_a_ray_of_our_own_no_place_at_all_is_an_error() -> None:
    with pytest.raises(
        NoPlaceError, match=r"^no instance fits on this machine: a: no node offers .*H100: 1; "
    ):
        await Run(Cluster(A10, own=True), spec("a", kind="H100"), spec("b", kind="H100")).task


async def test_the_end_of_a_ray_of_our_own_is_noticed() -> None:
    cluster = Cluster(A10, own=True)
    run = Run(cluster, spec("a"))
    await until(lambda: "a" in cluster.actors)
    cluster.up = []
    with pytest.raises(RayUnavailableError, match="has ended"):
        await run.task


@pytest.mark.parametrize("error", [Unavailable, Dead])
async def test_a_cluster_that_has_started_anew_is_left_with_what_was_on_it(error: type[Unavailable]) -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"))
    actor = await placed(cluster, "a")
    await until(lambda: actor.watched)
    cluster.anew = True
    actor.fail(error("its node is gone"))
    with pytest.raises(RayUnavailableError, match="started anew"):
        await run.task
    assert (cluster.killed, actor.stopped, run.asked) == ([], False, [])


async def test_a_cluster_that_has_started_anew_is_left_by_those_who_wait() -> None:
    cluster = Cluster(A10)
    run = Run(cluster, spec("a", kind="H100"))
    await until(lambda: "a" in run.unplaced)
    cluster.anew = True
    with pytest.raises(RayUnavailableError, match="started anew"):
        await run.task


async def test_those_who_look_at_instances_hear_of_each_that_waits() -> None:
    """Also after the store was away, and no more of one that has a place."""
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"), spec("b", kind="H100"), spec("c", kind="H200"))
    await placed(cluster, "a")
    await until(lambda: {"b", "c"} <= run.unplaced.keys())
    assert run.unplaced["b"].startswith("no node offers accelerator_type:H100: 1")
    await placed(cluster, "b")
    cluster.up = []
    await until(lambda: "no node is alive" in run.unplaced["c"])
    await until(lambda: cluster.actors["b"].watched)
    run.unplaced.clear()
    await until(lambda: run.unplaced)
    assert list(run.unplaced) == ["c"]
    await run.stop()


async def test_the_reason_of_waiting_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(A10)
    with caplog.at_level("INFO", logger="qlm.agents"):
        run = Run(cluster, spec("a", kind="H100"))
        await until(lambda: "a waits for a place: no node offers" in caplog.text)
        looked = cluster.looked
        await until(lambda: cluster.looked >= looked + 3)
        cluster.up = [*cluster.up, Node("there", {"accelerator_type:H100": 1})]
        await until(lambda: "is in use, or its process is starting" in caplog.text)
        await placed(cluster, "a")
        await until(lambda: "a: agent runs under Ray, in process 7" in caplog.text)
        await run.stop()
    assert caplog.text.count("no node offers") == 1
