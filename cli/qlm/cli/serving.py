"""Running gateway, controller and agents in one process, together or one of them."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from qlm.agents.engine_sweep import sweep
from qlm.agents.interpreter import AgentRunner
from qlm.agents.protocol import AgentProtocol
from qlm.cli.clock import SystemClock
from qlm.cli.config import Config, InstanceConfig
from qlm.cli.engines import model_host, operation_costs
from qlm.cli.monitor import monitor
from qlm.cli.parts import Parts, broker_of, open_parts
from qlm.cli.plan_audit import PlanAuditor
from qlm.cli.plan_generator import PlanGenerator
from qlm.cli.telemetry import Telemetry, open_telemetry
from qlm.cli.wiring import (
    agent_settings,
    controller_settings,
    fleet,
    group_ids,
    load_profiles,
    new_controller_id,
)
from qlm.controller.fleet import Fleet
from qlm.controller.loop import ControllerLoop
from qlm.controller.reindex import Reindexer
from qlm.domain.errors import BrokerUnavailableError, StoreUnavailableError
from qlm.domain.ids import InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.planner.baselines.edf import plan_edf_late_last
from qlm.rct_estimator.profile import Profile

log = logging.getLogger("qlm.cli")

RESTART_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Roles:
    """Which parts this process runs.

    Attributes:
        gateway: The doors: HTTP and gRPC.
        controller: Grouping and planning.
        instances: Names of the instances whose agents run here.
        ray: Whether the agents of all instances run under Ray, looked after from here.
    """

    gateway: bool
    controller: bool
    instances: tuple[str, ...]
    ray: bool = False

    @property
    def name(self) -> str:
        """What this process is to those who watch it."""
        parts = {
            "gateway": self.gateway,
            "controller": self.controller,
            "agent": bool(self.instances),
            "agents": self.ray,
        }
        named = [name for name, runs in parts.items() if runs]
        return named[0] if len(named) == 1 else "serve"


async def serve(
    config: Config, roles: Roles, beside: Callable[[Parts], Coroutine[Any, Any, None]] | None = None
) -> None:
    """Run the given parts until a signal asks to stop.

    Args:
        config: The whole configuration.
        roles: Which parts.
        beside: What else is to run with them.

    Raises:
        QlmError: Something that is needed is not there; the message is one clear sentence.
    """
    clock = SystemClock()
    profiles = load_profiles(config.profiles)
    known = fleet(config, profiles)
    async with AsyncExitStack() as stack:
        telemetry = open_telemetry(
            config,
            clock,
            stack,
            part=roles.name,
            controller=roles.controller,
            agents=bool(roles.instances),
        )
        if roles.gateway:
            # Here, since the images of controller and agents have no web server.
            from qlm.cli.doors import listen_at_doors, open_doors

            listener = listen_at_doors(config, stack)
        opened = await open_parts(config, clock, stack)
        parts = await stack.enter_async_context(telemetry.health.watching(opened))
        if parts.embedded:
            await _reindex(parts, clock)
        if roles.instances:
            await sweep_engines(config)
        tasks = await stack.enter_async_context(_task_group())
        if not roles.gateway:
            await stack.enter_async_context(monitoring(config, telemetry))
        if roles.controller:
            tasks.append(asyncio.create_task(_control(config, parts, known, clock, telemetry)))
        for instance in config.instances:
            if instance.id in roles.instances:
                work = serve_instance(config, instance, parts, profiles, clock, telemetry)
                tasks.append(asyncio.create_task(work))
        if beside is not None:
            tasks.append(asyncio.create_task(beside(parts)))
        # Ends before the others: agents of this process go on answering while its clients wait.
        doors = await stack.enter_async_context(_task_group())
        if roles.gateway:
            doors.append(asyncio.create_task(open_doors(config, parts, clock, listener, telemetry)))
        await _until_stopped([*tasks, *doors])


def monitoring(config: Config, telemetry: Telemetry) -> AbstractAsyncContextManager[int]:
    """Tell of this process on a port of its own."""
    return monitor(config.monitor, telemetry.registry, telemetry.health, telemetry.troubles)


async def sweep_engines(config: Config) -> None:
    """End what engines a killed agent left behind: they would hold accelerator memory."""
    killed = await asyncio.to_thread(sweep, config.data_dir / "engines")
    if killed:
        log.warning("%d processes of engines left over from before were ended", len(killed))


async def _reindex(parts: Parts, clock: SystemClock) -> None:
    async with broker_of(parts) as broker:
        found = await Reindexer(broker, parts.store, clock).index_all()
    if found:
        log.info("%d accepted requests were waiting in the queue: they go on", found)


async def _control(
    config: Config, parts: Parts, known: Fleet, clock: SystemClock, telemetry: Telemetry
) -> None:
    generator = PlanGenerator(config.data_dir)
    async with broker_of(parts) as broker, _task_group() as tasks:
        loop = ControllerLoop(
            name=new_controller_id(),
            store=parts.store,
            broker=broker,
            clock=clock,
            fleet=known,
            settings=controller_settings(config),
            planner=generator if config.planner == "qlm" else plan_edf_late_last,
            new_group_id=group_ids(),
            metrics=telemetry.controller,
        )
        if config.planner == "qlm":
            tasks.append(asyncio.create_task(generator.get_ready()))
            if telemetry.controller is not None:
                tasks.append(asyncio.create_task(PlanAuditor(telemetry.controller, generator).run()))
        await loop.run()


async def serve_instance(
    config: Config,
    instance: InstanceConfig,
    parts: Parts,
    profiles: tuple[Profile, ...],
    clock: SystemClock,
    telemetry: Telemetry,
) -> None:
    """Run one agent; after a failure start a new life of it, until it was drained."""
    models = [ModelId(model) for model in instance.models]
    while True:
        holder = Holder(InstanceId(instance.id), SessionId(token_hex(8)))
        costs = operation_costs(config, instance, profiles)
        protocol = AgentProtocol(holder, instance.kind, models, agent_settings(config), costs)
        host = model_host(config, instance, profiles)
        try:
            async with broker_of(parts) as broker:
                runner = AgentRunner(
                    protocol,
                    broker=broker,
                    store=parts.store,
                    host=host,
                    clock=clock,
                    metrics=telemetry.agents,
                    tracer=telemetry.tracer,
                )
                with telemetry.agent(protocol):
                    await runner.run(config.stop.grace_s)
        except (BrokerUnavailableError, StoreUnavailableError) as error:
            log.error("%s: %s", instance.id, error)
        finally:
            await host.close()
        if protocol.drained:
            log.info("%s is drained", instance.id)
            return
        log.error("%s: agent stopped; a new one starts", instance.id)
        await asyncio.sleep(RESTART_PAUSE_S)


@asynccontextmanager
async def _task_group() -> AsyncIterator[list[asyncio.Task[None]]]:
    """Cancel all collected tasks at the end and wait for them."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_stopped(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for SIGINT, SIGTERM, the failure of a task, or the end of all of them.

    A second signal takes what is left of the tasks' time to end.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    running: set[asyncio.Task[None]] = set(tasks)
    try:
        while running:
            done, _ = await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
            if stopped in done:
                log.info("stopping; a second signal ends it at once")
                return
            for task in done & running:
                running.discard(task)
                task.result()
    finally:
        stopped.cancel()
        _hurry_when_told_again(tasks)


def _hurry_when_told_again(tasks: list[asyncio.Task[None]]) -> None:
    def hurry() -> None:
        log.warning("stopping at once")
        for task in tasks:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, hurry)
