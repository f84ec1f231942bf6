"""The simulated store and broker keep the contracts that Redis and RabbitMQ keep."""

import itertools
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from qlm.broker import contract as broker_contract
from qlm.broker.contract_storage import Check as BrokerCheck
from qlm.domain.ids import QueueName
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.store import Store
from qlm.simulator.system.broker_link import BrokerLink
from qlm.simulator.system.broker_server import BrokerServer
from qlm.simulator.system.history import History
from qlm.simulator.system.network import Network
from qlm.simulator.system.process import Process, own_tasks
from qlm.simulator.system.store_link import link_to_store
from qlm.simulator.system.store_notes import StoreNotes
from qlm.simulator.system.store_server import StoreServer
from qlm.simulator.system.virtual_loop import VirtualLoop
from qlm.store import contract as store_contract
from qlm.store.contract import Check as StoreCheck
from qlm.store.contract_values import Subject
from qlm.store.core import StoreCore


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


@pytest.mark.parametrize(
    "check",
    (*broker_contract.CHECKS, *broker_contract.ORDER_CHECKS),
    ids=lambda check: check.__name__,
)
def test_the_simulated_broker_keeps_the_contract(check: BrokerCheck) -> None:
    async def work(loop: VirtualLoop) -> None:
        await check(SimulatedStorage(loop))

    run(work)


@pytest.mark.parametrize("check", store_contract.CHECKS, ids=lambda check: check.__name__)
def test_the_simulated_store_keeps_the_contract(check: StoreCheck) -> None:
    async def work(loop: VirtualLoop) -> None:
        history, network = History(), Network(loop, Random(0))
        server = StoreServer(
            loop, network, history, lambda incarnation: StoreCore(incarnation, store_contract.LIMITS)
        )
        store = link_to_store(Process(loop, "process"), server, network, StoreNotes(loop, history))

        async def emptied() -> Store:
            server.flush()
            return store

        await check(Subject(store, emptied))

    run(work)
