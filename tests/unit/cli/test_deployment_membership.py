"""Members of deployments in virtual time: many processes, servers that lose their mark, other deployments."""

import asyncio
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest

from qlm.cli.deployment.membership import KEEP_S, LIMIT_S, SETTLE_S, Servers, join, membership
from qlm.domain.errors import BrokerUnavailableError, DeploymentTakenError
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.tasks import end_tasks
from simulation.virtual_loop import VirtualLoop
from support.marked_servers import MemoryMark, MemoryServer

TTL_S = 6.0
SEEDS = range(50)


@dataclass(slots=True, eq=False)
class Process:
    """A process of a deployment.

    Attributes:
        broker: Name of its broker.
        store: Name of its store.
        joined: It is a member.
        refused: Why it is none.
    """

    broker: str
    store: str
    servers: Servers
    joined: bool = False
    refused: str = ""
    task: asyncio.Task[None] | None = None

    async def run(self, new_id: Callable[[], str]) -> None:
        try:
            async with membership(self.servers, new_id, FaultLog()):
                self.joined = True
                await asyncio.Event().wait()
        except DeploymentTakenError as error:
            self.refused = str(error)
        finally:
            self.joined = False

    async def end(self) -> None:
        """Crash: the broker sees the end of the connection, the store nothing."""
        if self.task is not None:
            await end_tasks([self.task])
        await self.servers.broker.close()
        await self.servers.store.close()


@dataclass(slots=True)
class World:
    """Servers and processes under one seed."""

    rng: random.Random
    longest_s: float = 0.01
    processes: list[Process] = field(default_factory=list)
    servers: dict[str, MemoryServer] = field(default_factory=dict)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def new_id(self) -> str:
        return f"d{next(self.numbers)}"

    def process(self, broker: str = "B", store: str = "S") -> Process:
        bearers = [
            MemoryMark(self._server(name), self.rng, longest_s=self.longest_s) for name in (broker, store)
        ]
        made = Process(broker, store, Servers("qlm", *bearers))
        self.processes.append(made)
        return made

    def start(self, broker: str = "B", store: str = "S") -> Process:
        made = self.process(broker, store)
        made.task = asyncio.create_task(made.run(self.new_id))
        return made

    def _server(self, name: str) -> MemoryServer:
        ttl_s = TTL_S if name.startswith("S") else inf
        return self.servers.setdefault(name, MemoryServer(name, ttl_s))

    def mark(self, name: str) -> str | None:
        mark = self.servers[name].mark
        return None if mark is None else mark.id

    async def settle(self) -> None:
        """Wait until every process has joined or is refused."""
        while True:
            if all(each.joined or each.refused for each in self.running):
                return
            await asyncio.sleep(0.01)

    @property
    def running(self) -> list[Process]:
        """Those whose work has not ended."""
        return [each for each in self.processes if each.task is not None and not each.task.done()]

    async def end_all(self) -> None:
        for each in self.processes:
            await each.end()


def play(scenario: Callable[[World], Awaitable[None]], seed: int = 0, **more: Any) -> None:
    async def whole() -> None:
        world = World(random.Random(seed), **more)
        try:
            await scenario(world)
        finally:
            await world.end_all()

    run_virtually(whole())


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(work)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_ten_that_start_at_once_are_one_deployment_soon() -> None:
    async def scenario(world: World) -> None:
        for _ in range(10):
            world.start()
        began_s = asyncio.get_running_loop().time()
        await world.settle()
        assert all(each.joined for each in world.processes)
        assert world.mark("B") == world.mark("S") is not None
        assert asyncio.get_running_loop().time() - began_s < 1.0

    for seed in SEEDS:
        play(scenario, seed)


@pytest.mark.parametrize("other", [("B", "S2"), ("B2", "S")])
def test_a_second_deployment_on_one_of_the_servers_is_refused(other: tuple[str, str]) -> None:
    async def scenario(world: World) -> None:
        world.start()
        await world.settle()
        for _ in range(2):
            second = world.start(*other)
            await world.settle()
            assert "two deployments have the deployment_name 'qlm'" in second.refused
        third = world.start()
        await world.settle()
        assert third.joined

    play(scenario)


@pytest.mark.parametrize("other", [("B", "S2"), ("B2", "S")])
def test_of_two_deployments_that_start_at_once_one_is_refused(other: tuple[str, str]) -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            world.start()
            world.start(*other)
        await asyncio.sleep(LIMIT_S + 2 * SETTLE_S)
        joined = {(each.broker, each.store) for each in world.processes if each.joined}
        refused = {(each.broker, each.store) for each in world.processes if each.refused}
        assert len(joined) == 1, f"{world.rng}: {joined}, refused {refused}"
        assert not joined & refused

    for seed in SEEDS:
        play(scenario, seed)


@pytest.mark.parametrize("emptied", [("S",), ("B",), ("S", "B")])
def test_an_emptied_server_is_marked_again_while_others_start(emptied: tuple[str, ...]) -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            world.start()
        await world.settle()
        for _ in range(3):
            await asyncio.sleep(world.rng.uniform(0, 2 * KEEP_S))
            for name in emptied:
                world.servers[name].empty()
            await asyncio.sleep(world.rng.uniform(0, KEEP_S))
            world.start()
        await world.settle()
        await asyncio.sleep(3 * KEEP_S)
        assert [each.refused for each in world.processes] == [""] * 6
        assert world.mark("B") == world.mark("S") is not None

    for seed in SEEDS:
        play(scenario, seed)


@pytest.mark.parametrize("emptied", ["S", "B"])
def test_a_deployment_that_ended_starts_on_an_emptied_server(emptied: str) -> None:
    async def scenario(world: World) -> None:
        first = world.start()
        await world.settle()
        former = world.mark("B")
        await first.end()
        world.servers[emptied].empty()
        began_s = asyncio.get_running_loop().time()
        for _ in range(10):
            world.start()
        await world.settle()
        assert all(each.joined for each in world.processes[1:])
        assert world.mark("B") == world.mark("S") != former
        assert asyncio.get_running_loop().time() - began_s < TTL_S + SETTLE_S + 2

    for seed in range(20):
        play(scenario, seed)


@pytest.mark.parametrize("other", [("B", "S2"), ("B2", "S")])
def test_the_former_deployment_is_refused_after_another_took_its_server(other: tuple[str, str]) -> None:
    async def scenario(world: World) -> None:
        first = world.start()
        await world.settle()
        await first.end()
        second = world.start(*other)
        await world.settle()
        assert second.joined
        again = world.start()
        await world.settle()
        assert again.refused
        await second.end()
        once_more = world.start()
        await world.settle()
        assert once_more.refused
        adopting = world.process()
        await join(adopting.servers, world.new_id, adopts=True)
        last = world.start()
        await world.settle()
        assert last.joined

    play(scenario)


def test_a_restart_of_the_broker_does_not_let_a_refused_deployment_in() -> None:
    """Its unit starts it again and again; the members need a moment to return."""

    async def scenario(world: World) -> None:
        world.start()
        await world.settle()

        async def intrude() -> None:
            while True:
                second = world.start("B", "S2")
                await world.settle()
                assert second.refused

        intruding = asyncio.create_task(intrude())
        for _ in range(20):
            await asyncio.sleep(world.rng.uniform(0, 10))
            world.servers["B"].members.clear()  # durable marks stay
        assert not intruding.done()
        await end_tasks([intruding])

    for seed in range(10):
        play(scenario, seed)


def test_a_member_whose_server_was_taken_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        first = world.start()
        await world.settle()
        world.servers["S"].empty()
        second = world.start("B2", "S")
        await asyncio.sleep(5 * KEEP_S)
        assert first.joined and second.joined
        assert world.mark("B") != world.mark("S") == world.mark("B2")

    with caplog.at_level(logging.ERROR, "qlm.cli"):
        play(scenario)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "two deployments have the deployment_name 'qlm'" in said


def test_members_learn_the_id_that_both_servers_have() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        async with membership(process.servers, world.new_id, FaultLog()) as member:
            former = member.id
            for server in world.servers.values():
                server.empty()
            await join(world.process().servers, world.new_id)
            await asyncio.sleep(3 * KEEP_S)
            assert member.id == world.mark("B") == world.mark("S") != former

    play(scenario)


def test_a_member_remains_one_on_a_server_while_the_other_is_away() -> None:
    async def scenario(world: World) -> None:
        first = world.start()
        await world.settle()
        bearer = first.servers.broker
        assert isinstance(bearer, MemoryMark)

        async def hangs(*args: Any, **kwargs: Any) -> bool:
            await asyncio.sleep(10)
            raise BrokerUnavailableError("away")

        bearer.renew = hangs  # type: ignore[method-assign]
        for _ in range(4):
            await asyncio.sleep(TTL_S)
            assert await first.servers.store.has_members(str(world.mark("S")))
        second = world.start("B2", "S")
        await world.settle()
        assert second.refused

    play(scenario)


def test_failures_do_not_end_a_member(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        process = world.start()
        await world.settle()
        bearer = process.servers.store
        assert isinstance(bearer, MemoryMark)
        works, calls = bearer.renew, 0

        async def fails(*args: Any, **kwargs: Any) -> bool:
            nonlocal calls
            calls += 1
            raise RuntimeError("broken")

        bearer.renew = fails  # type: ignore[method-assign]
        await asyncio.sleep(3 * KEEP_S + 1)
        assert calls == 3
        bearer.renew = works  # type: ignore[method-assign]
        world.servers["S"].empty()
        await asyncio.sleep(2 * KEEP_S)
        assert world.mark("S") == world.mark("B")

    play(scenario)
    assert len([r for r in caplog.records if "mark was not renewed" in r.getMessage()]) == 1
