"""The processes of one trial: gateways, controllers and agents, wired as in production."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine
from random import Random
from typing import Any, Final

from qlm.agents.core.costs.host_memory import SwapCost
from qlm.agents.core.state import AgentSettings
from qlm.agents.engines.model_host import ModelHost
from qlm.agents.shell.runner import AgentRunner
from qlm.controller.core.decide import ControllerSettings
from qlm.controller.core.fleet import Fleet
from qlm.controller.shell.loop import ControllerLoop
from qlm.domain.fleet import EngineCapacity, ModelSpec
from qlm.domain.ids import ControllerId, GatewayId, GroupId, InstanceId, ModelId, RequestId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.ports.store import Store
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.http.app import create_app
from qlm.planner.baselines.edf import plan_edf_late_last
from qlm.planner.problem import Kind, ModelCost
from qlm.rct_estimator.profiles.builtin import unmeasured_profile
from simulation.broker_link import BrokerLink
from simulation.broker_server import BrokerServer
from simulation.connection import App
from simulation.engine import SimulatedEngine, SimulatedUnit
from simulation.history import Failed, History
from simulation.machine import Machine
from simulation.network import Network
from simulation.parts import P, Parts
from simulation.process import Process
from simulation.store_link import link_to_store
from simulation.store_recorder import StoreRecorder
from simulation.virtual_loop import VirtualLoop
from simulation.workload import MODELS

ACCELERATOR: Final = "A10"
CONTEXT_TOKENS: Final = 256
CAPACITY: Final = EngineCapacity(kv_tokens=512, block_tokens=16, seqs_max=5, context_tokens=CONTEXT_TOKENS)
WEIGHTS_BYTES: Final = 10
HOST_MEMORY_BYTES: Final = 15
"""Enough for one sleeping model, too little for two."""

GATEWAYS: Final = ("gateway-0", "gateway-1")
CONTROLLERS: Final = ("controller-0", "controller-1")
INSTANCES: Final = {"gpu-0": MODELS, "gpu-1": MODELS, "gpu-2": MODELS[1:]}
LIMITS: Final = GatewayLimits(
    poll_max_s=4.0, unknown_after_s=12.0, resume_grace_stream_s=3.0, publish_timeout_s=6.0, encode_threads=1
)
AGENT: Final = AgentSettings(delivery_renewal_s=6.0, append_interval_s=0.25)
CONTROLLER: Final = ControllerSettings(demotes=True, swap_hysteresis=True, min_interval_s=0.8, linger_s=5.0)


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
        self._fleet = _fleet()

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
        process = self._processes[name] = Process(self.loop, name)
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
        life = f"{name}-{next(self._lives)}"
        part = name.partition("-")[0]
        work = main(process, life, self._wrapped(part, "store", store), self._wrapped(part, "broker", broker))
        self._mains[name] = process.spawn(self._live(name, process, work))

    def kill(self, name: str) -> None:
        """Kill a process; its memory is lost and its connections break."""
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            self._brokers.pop(name).drop()
            self._apps.pop(name, None)
            self._machines.pop(name, None)

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
        """Run a process's work; record an error that ends it."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.history.add(Failed(self.loop.time(), name, repr(error)))
            if process.alive:
                self.kill(name)

    def _new_id(self) -> RequestId:
        return RequestId(f"r{next(self._ids)}")

    async def _run_gateway(self, process: Process, life: str, store: Store, broker: BrokerLink) -> None:
        app = create_app(_MODELS, broker, store, process, LIMITS, GatewayId(life), self._new_id)
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
        ).run()

    async def _run_agent(self, process: Process, life: str, store: Store, broker: BrokerLink) -> None:
        name, models = process.name, INSTANCES[process.name]
        holder = Holder(InstanceId(name), SessionId(life))
        machine = Machine(
            self.loop,
            self.history,
            holder,
            blocks_max=CAPACITY.kv_blocks,
            weights_bytes=dict.fromkeys(models, WEIGHTS_BYTES),
            host_memory_bytes=HOST_MEMORY_BYTES,
            engine_failures=self.engine_failures[name],
        )
        units = {
            model: SimulatedUnit(SimulatedEngine(self.loop, model, machine, CAPACITY, self._chance))
            for model in models
        }
        self._machines[name] = (machine, list(units.values()))
        host = ModelHost(
            {model: self._wrapped("gpu", "unit", unit) for model, unit in units.items()},
            costs=dict.fromkeys(models, SwapCost(weights_bytes=WEIGHTS_BYTES)),
            host_memory_bytes=HOST_MEMORY_BYTES,
        )
        protocol = self._parts.make_agent(holder, ACCELERATOR, models, AGENT)
        await AgentRunner(protocol, broker=broker, store=store, host=host, clock=process).run()
        await host.close()
        if not protocol.state.drained:
            raise RuntimeError("the agent stopped though it was not drained")
        self.history.coverage["agent drained"] += 1
        self.kill(name)


_MODELS: Final = tuple(
    ModelSpec(id=model, tokenizer="byte", context_tokens=CONTEXT_TOKENS) for model in MODELS
)


def _fleet() -> Fleet:
    costs = {
        model: ModelCost(weights_bytes=WEIGHTS_BYTES, swap_warm_s=0.2, swap_cold_s=1.0, unload_s=0.1)
        for model in MODELS
    }
    profile = {
        model: unmeasured_profile(model, ACCELERATOR, context_tokens=CONTEXT_TOKENS) for model in MODELS
    }
    return Fleet(
        kinds={ACCELERATOR: Kind(host_memory_bytes=HOST_MEMORY_BYTES, models=costs)},
        profiles={(ModelId(model), ACCELERATOR): each for model, each in profile.items()},
    )
