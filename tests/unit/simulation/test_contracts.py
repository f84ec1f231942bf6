"""The simulated store and broker keep the contracts that Redis and RabbitMQ keep."""

import itertools
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from contract.suites.checks import Check, checks_of
from contract.suites.store.values import LIMITS, Subject
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.store import Store
from qlm.store.core.state import State
from simulation.broker_link import BrokerLink
from simulation.broker_server import BrokerServer
from simulation.history import History
from simulation.network import Network
from simulation.process import Process, own_tasks
from simulation.store_link import link_to_store
from simulation.store_recorder import StoreRecorder
from simulation.store_server import StoreServer
from simulation.virtual_loop import VirtualLoop


class SimulatedStorage:
    """A simulated broker, and processes that use it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._server = BrokerServer()
        self._network = Network(loop, Random(0))
        self._names = itertools.count()
        self._processes: dict[int, Process] = {}

    def queue(self, label: str = "q") -> QueueName:
        return QueueName(f"{label}.{next(self._names)}")

    async def open(self) -> Broker:
        process = Process(self._loop, f"process-{next(self._names)}")
        link = BrokerLink(process, self._server, self._network, self._loop, History())
        self._processes[id(link)] = process
        return link

    async def crash(self, broker: Broker) -> None:
        assert isinstance(broker, BrokerLink)
        self._processes[id(broker)].kill()
        broker.drop()


def run(work: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    own_tasks(loop)
    try:
        loop.run_until_complete(work(loop))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


@pytest.mark.parametrize("check", checks_of("broker"), ids=lambda check: check.__name__)
def test_the_simulated_broker_keeps_the_contract(check: Check) -> None:
    async def work(loop: VirtualLoop) -> None:
        await check(SimulatedStorage(loop))

    run(work)


@pytest.mark.parametrize("check", checks_of("store"), ids=lambda check: check.__name__)
def test_the_simulated_store_keeps_the_contract(check: Check) -> None:
    async def work(loop: VirtualLoop) -> None:
        history, network = History(), Network(loop, Random(0))
        server = StoreServer(loop, network, history, lambda incarnation: State(incarnation, LIMITS))
        store = link_to_store(Process(loop, "process"), server, network, StoreRecorder(loop, history))

        async def emptied() -> Store:
            server.flush()
            return store

        await check(Subject(store, emptied))

    run(work)
