"""A failure that the supervisor of Ray agents does not know costs one instance a turn; in virtual time."""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from qlm.agents.ray import cluster as cluster_of_ray
from qlm.agents.ray import supervisor as supervising
from qlm.agents.ray.cluster import AgentSpec
from qlm.agents.ray.supervisor import RETRY_MAX_S, RETRY_S
from qlm.domain.ids import InstanceId
from qlm.domain.shell.faults import FaultKind
from simulation.virtual_loop import VirtualLoop
from support.gateway import until
from support.ray_in_memory import A10, Actor, Cluster, Dead, Run, placed, spec

LONG_S = 600.0


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


class Faulty(Cluster):
    """Ray that fails in a way of its own when it is asked to make or kill the actors of some instances."""

    def __init__(self) -> None:
        super().__init__(A10)
        self.made_at_s: list[float] = []
        self.fails: set[str] = set()

    def make(self, spec: AgentSpec) -> Actor:
        if spec.instance in self.fails:
            self.made_at_s.append(asyncio.get_running_loop().time())
            raise KeyError("NodeManagerAddress")
        return super().make(spec)

    def kill(self, actor: Actor) -> None:
        if any(self.actors.get(name) is actor for name in self.fails):
            raise KeyError("NodeManagerAddress")
        super().kill(actor)


def test_others_go_on_and_the_instance_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cluster = Faulty()
        run = Run(cluster, spec("a"), spec("b"))
        first, second = await placed(cluster, "a"), await placed(cluster, "b")
        await until(lambda: first.watched == second.watched == 1)
        cluster.fails = {"b"}
        second.fail(Dead("its node is gone"))
        del cluster.actors["b"]
        await until(lambda: len(cluster.made_at_s) == 10, LONG_S)
        assert (run.task.done(), run.asked, cluster.killed, first.watched) == (False, [], [], 1)
        assert run.faults == [FaultKind.BUG] * 10
        cluster.fails = set()
        await until(lambda: "b" in cluster.actors, LONG_S)
        again = await placed(cluster, "b")
        await until(lambda: again.watched == 1)
        await run.stop()
        assert sorted(run.asked) == ["a", "b"]
        assert {id(each) for each in cluster.killed} == {id(first), id(again)}

    with caplog.at_level(logging.ERROR, logger="qlm.agents"):
        in_virtual_time(main)
    assert [each.exc_info is not None for each in caplog.records if "supervision" in each.message] == [True]


def test_pauses_grow_with_each_failure_and_are_short_again_after_a_good_turn() -> None:
    async def main() -> None:
        cluster = Faulty()
        cluster.fails = {"a"}
        run = Run(cluster, spec("a"))
        await until(lambda: len(cluster.made_at_s) == 10, LONG_S)
        tried_s = cluster.made_at_s
        pauses = [after - before for before, after in itertools.pairwise(tried_s)]
        assert pauses == pytest.approx([min(RETRY_S * 2**n, RETRY_MAX_S) for n in range(9)])
        cluster.fails = set()
        await until(lambda: "a" in cluster.actors, LONG_S)
        actor = await placed(cluster, "a")
        await until(lambda: actor.watched == 1)
        cluster.fails = {"a"}
        del cluster.actors["a"]
        actor.fail(Dead("its node is gone"))
        await until(lambda: len(cluster.made_at_s) == 12)
        assert tried_s[11] - tried_s[10] == pytest.approx(RETRY_S)
        await run.stop()

    in_virtual_time(main)


def test_one_that_cannot_be_stopped_does_not_keep_others_running() -> None:
    async def main() -> None:
        cluster = Faulty()
        run = Run(cluster, spec("a"), spec("b"))
        first, second = await placed(cluster, "a"), await placed(cluster, "b")
        await until(lambda: first.watched == second.watched == 1)
        cluster.fails = {"a"}
        await run.stop()
        assert (sorted(run.asked), cluster.killed) == (["a", "b"], [second])
        assert run.faults == [FaultKind.BUG]

    in_virtual_time(main)


def test_an_actor_whose_drain_fails_is_killed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(run: Run, instance: InstanceId) -> bool:
        raise KeyError(instance)

    async def main() -> None:
        cluster = Faulty()
        run = Run(cluster, spec("a"))
        actor = await placed(cluster, "a")
        await until(lambda: actor.watched == 1)
        await run.stop()
        assert (cluster.killed, run.faults) == ([actor], [FaultKind.BUG])

    monkeypatch.setattr(Run, "ask_drain", fail)
    in_virtual_time(main)


def test_one_of_an_earlier_configuration_that_does_not_end_keeps_no_other_waiting() -> None:
    async def main() -> None:
        cluster = Faulty()
        former = cluster.actors["former"] = Actor("now")
        former.place()
        cluster.fails = {"former"}
        run = Run(cluster, spec("a"))
        actor = await placed(cluster, "a")
        await until(lambda: actor.watched == 1)
        assert cluster.killed == []
        cluster.fails = set()
        await until(lambda: cluster.killed == [former])
        await run.stop()

    in_virtual_time(main)


async def test_a_ray_that_does_not_answer_holds_up_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real loop, whose thread is blocked."""
    answered = threading.Event()
    cluster = Cluster(A10)
    run = Run(cluster, spec("a"))
    actor = await placed(cluster, "a")
    await until(lambda: actor.watched == 1)
    monkeypatch.setattr(supervising, "STOP_MAX_S", 0.05)
    monkeypatch.setattr(cluster, "kill", lambda actor: answered.wait())
    try:
        async with asyncio.timeout(10):
            await run.stop()
    finally:
        answered.set()
    assert run.asked == ["a"]


def test_a_head_that_does_not_answer_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Ray:
        def shutdown(self) -> None:
            answered.wait()

    answered = threading.Event()
    monkeypatch.setattr(cluster_of_ray, "DISCONNECT_MAX_S", 0.05)
    joined = cluster_of_ray.RayCluster(address="10.0.0.1:6379", namespace="qlm", offers={})
    monkeypatch.setattr(joined, "_ray", Ray())
    try:
        joined.__exit__(None, None, None)
    finally:
        answered.set()
    assert "does not answer" in caplog.text
