"""The processes of one trial: gateways, controllers and agents, wired as in production."""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Coroutine
from contextvars import Context
from random import Random
from typing import Any, Final

from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.engines.model_host import ModelHost
from qlm.agents.shell.runner import AgentRunner
from qlm.controller.shell.loop import ControllerLoop
from qlm.domain.errors import InstanceHeldError
from qlm.domain.ids import ControllerId, GatewayId, GroupId, InstanceId, RequestId, SessionId
from qlm.domain.lease import AgentProcess, Holder
from qlm.domain.ports.store import Store
from qlm.domain.shell.faults import FaultKind, FaultLog
from qlm.gateway.http.app import create_app
from qlm.gateway.sessions.gateway import GatewayParts
from qlm.planner.baselines.edf import plan_edf_late_last
from qlm.rct_estimator.host_memory import SwapCost
from simulation.broker_link import BrokerLink
from simulation.broker_server import BrokerServer
from simulation.connection import App
from simulation.engine import SPEED, SimulatedEngine, SimulatedUnit
from simulation.hang import EngineHang
from simulation.history import Died, Failed, History
from simulation.machine import Machine
from simulation.network import Network
from simulation.parts import P, Parts
from simulation.process import Process
from simulation.settings import (
    ACCELERATOR,
    AGENT,
    CAPACITY,
    CONTROLLER,
    CONTROLLERS,
    DOUBLES,
    GATEWAYS,
    HOST_MEMORY_BYTES,
    INSTANCES,
    LIMITS,
    SPECS,
    WEIGHTS_BYTES,
    make_fleet,
)
from simulation.store_link import link_to_store
from simulation.store_recorder import StoreRecorder
from simulation.virtual_loop import VirtualLoop

RESTART_S: Final = 1.0
"""Time after which a supervisor starts a failed process again."""


class DefectLog(FaultLog):
    """Log of the failures of one process that records those which no server and no client caused."""

    def __init__(self, loop: VirtualLoop, history: History, process: Process) -> None:
        super().__init__()
        self._loop = loop
        self._history = history
        self._process = process

    def note(
        self, log: logging.Logger, error: Exception, doing: str, *args: object, extra: Any = None
    ) -> FaultKind:
        kind = super().note(log, error, doing, *args, extra=extra)
        if kind is FaultKind.BUG and self._process.alive:
            text = f"{doing % args if args else doing}: {error!r}"
            self._history.add(Failed(self._loop.time(), self._process.name, text))
        return kind


class Cluster:
    """All processes by name, and the operations of faults on them.

    Attributes:
        engine_failures: Number of next starts and wakes that fail, by instance.
    """

    def __init__(self, loop: VirtualLoop, parts: Parts, seed: int, history: History) -> None:
        self.loop = loop
        self.history = history
        self.network = Network(loop, Random(f"{seed} network"))
        self.store = parts.make_store(loop, self.network, history, parts.make_state)
        self.broker = BrokerServer()
        self.engine_failures = {name: Counter[str]() for name in INSTANCES}
        self._parts = parts
        self._chance = Random(f"{seed} engines")
        self._recorder = StoreRecorder(loop, history)
        self._lives = itertools.count()
        self._ids = itertools.count()
        self._processes: dict[str, Process] = {}
        self._mains: dict[str, asyncio.Task[Any]] = {}
        self._brokers: dict[str, BrokerLink] = {}
        self._apps: dict[str, App] = {}
        self._machines: dict[str, tuple[Machine, list[SimulatedUnit]]] = {}
        self._fleet = make_fleet()
        self._hangs = {
            (name, model): EngineHang(loop) for name, models in INSTANCES.items() for model in models
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all processes."""
        return (*GATEWAYS, *CONTROLLERS, *INSTANCES)

    def start_all(self) -> None:
        """Start every process."""
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a process that is not up."""
        if name in self._processes:
            return
        process = self._processes[name] = Process(self.loop, name, next(self._lives))
        main = (
            self._run_gateway
            if name in GATEWAYS
            else self._run_controller
            if name in CONTROLLERS
            else self._run_agent
        )
        broker = self._brokers[name] = BrokerLink(
            process, self.broker, self.network, self.loop, self.history, accepts=name in GATEWAYS
        )
        store = link_to_store(process, self.store, self.network, self._recorder)
        part = name.partition("-")[0]
        work = main(
            process, process.life, self._wrapped(part, "store", store), self._wrapped(part, "broker", broker)
        )
        self._mains[name] = process.spawn(self._live(name, process, work))

    def kill(self, name: str) -> None:
        """Kill a process; its memory is lost and its connections break."""
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            self._brokers.pop(name).drop()
            self._apps.pop(name, None)
            self._machines.pop(name, None)
            self.history.add(Died(self.loop.time(), process.life))

    async def stop(self, name: str) -> None:
        """Shut a process down gracefully, and wait for it."""
        main = self._mains[name]
        main.cancel()
        await asyncio.wait([main])
        self.kill(name)

    async def drain(self, name: str) -> None:
        """Ask an instance to drain, as an operator does."""
        await self.store.ask_drain(InstanceId(name))

    def process(self, name: str) -> Process | None:
        """Return a process; None if it is down."""
        return self._processes.get(name)

    def drop_broker(self, name: str) -> None:
        """Break the connection of a process to the broker."""
        if name in self._brokers:
            self._brokers[name].drop()

    def machine(self, name: str) -> Machine | None:
        """Return the machine of an instance; None if it is down."""
        found = self._machines.get(name)
        return None if found is None else found[0]

    def kill_engine(self, name: str, chance: Random) -> bool:
        """Kill an engine process of an instance; False if it has none."""
        _, units = self._machines.get(name, (None, []))
        up = [unit for unit in units if unit.engine.up]
        if up:
            chance.choice(up).engine.die()
        return bool(up)

    def hang_of(self, name: str) -> EngineHang:
        """Return how the awake engine of an instance hangs; the first engine if none is awake."""
        machine = self.machine(name)
        awake = None if machine is None else machine.awake
        return self._hangs[name, awake or INSTANCES[name][0]]

    def gateway(self, chance: Random) -> tuple[Process, App] | None:
        """Draw a gateway that is up; None if there is none."""
        up = [name for name in GATEWAYS if name in self._apps]
        if not up:
            return None
        name = chance.choice(up)
        return self._processes[name], self._apps[name]

    def _wrapped(self, part: str, port: str, served: P) -> P:
        wrap = self._parts.wrap
        return served if wrap is None else wrap(part, port, served)

    async def _live(self, name: str, process: Process, work: Coroutine[Any, Any, None]) -> None:
        """Run a process's work; record an end that nobody asked for, and start it again."""
        why = "it ended without an error"
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:
            why = repr(error)
        if process.alive:
            self.history.add(Failed(self.loop.time(), name, why))
            self.kill(name)
            self.loop.call_later(RESTART_S, self.start, name, context=Context())

    def _faults_of(self, process: Process) -> FaultLog:
        # Injected failures are defects on purpose.
        return FaultLog() if self._parts.wrap is not None else DefectLog(self.loop, self.history, process)

    def _new_id(self) -> RequestId:
        return RequestId(f"r{next(self._ids)}")

    async def _run_gateway(self, process: Process, life: str, store: Store, broker: BrokerLink) -> None:
        app = create_app(
            GatewayParts(
                models=SPECS,
                broker=broker,
                store=store,
                clock=process,
                limits=LIMITS,
                gateway_id=GatewayId(life),
                new_id=self._new_id,
                faults=self._faults_of(process),
            )
        )
        async with app.router.lifespan_context(app):
            self._apps[process.name] = app
            await asyncio.Event().wait()

    async def _run_controller(self, process: Process, life: str, store: Store, broker: BrokerLink) -> None:
        groups = itertools.count()
        await ControllerLoop(
            name=ControllerId(life),
            store=store,
            broker=broker,
            clock=process,
            fleet=self._fleet,
            settings=CONTROLLER,
            planner=plan_edf_late_last,
            new_group_id=lambda _: GroupId(f"{life}-{next(groups)}"),
            faults=self._faults_of(process),
            processor_s=lambda: 0.0,
        ).run()

    async def _run_agent(self, process: Process, life: str, store: Store, broker: BrokerLink) -> None:
        name = process.name
        instance = DOUBLES.get(name, name)
        models, holder = INSTANCES[instance], Holder(InstanceId(instance), SessionId(life))
        machine = Machine(
            self.loop,
            self.history,
            holder,
            blocks_max=CAPACITY.kv_blocks,
            weights_bytes=dict.fromkeys(models, WEIGHTS_BYTES),
            host_memory_bytes=HOST_MEMORY_BYTES,
            engine_failures=self.engine_failures[instance],
        )
        units = {
            model: SimulatedUnit(
                SimulatedEngine(
                    self.loop, model, machine, CAPACITY, self._chance, self._hangs[instance, model]
                )
            )
            for model in models
        }
        self._machines[name] = (machine, list(units.values()))
        host = ModelHost(
            {model: self._wrapped("gpu", "unit", unit) for model, unit in units.items()},
            costs=dict.fromkeys(models, SwapCost(weights_bytes=WEIGHTS_BYTES)),
            host_memory_bytes=HOST_MEMORY_BYTES,
        )
        costs = OperationCosts(speed=dict.fromkeys(models, SPEED))
        protocol = self._parts.make_agent(holder, ACCELERATOR, models, AGENT, costs)
        runner = AgentRunner(
            protocol,
            broker=broker,
            store=store,
            host=host,
            clock=process,
            faults=self._faults_of(process),
            process=_facts(process),
            has_ended=self._has_ended,
        )
        try:
            await runner.run()
        except InstanceHeldError:
            await host.close()
            self._refused(name)
            return
        await host.close()
        if not protocol.state.drained:
            raise RuntimeError("the agent stopped though it was not drained")
        self.history.coverage["agent drained"] += 1
        self.kill(name)

    def _has_ended(self, process: AgentProcess) -> bool:
        return process.pid not in {each.pid for each in self._processes.values()}

    def _refused(self, name: str) -> None:
        """End an agent whose instance has another one; one that is no double is started again."""
        self.history.coverage["agent refused"] += 1
        self.kill(name)
        if name not in DOUBLES:
            self.loop.call_soon(self.start, name, context=Context())


def _facts(process: Process) -> AgentProcess:
    """Describe a simulated process; one of another name runs on another machine."""
    return AgentProcess(
        host=process.name,
        pid=process.pid,
        start_ticks=process.pid,
        boot_id=process.name,
        pid_namespace="",
        began_ns=process.now_ns(),
    )
