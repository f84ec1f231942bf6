"""Running gateway, controller and agents in one process, together or one of them."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

from qlm.agents.engine_sweep import sweep
from qlm.agents.interpreter import AgentRunner
from qlm.agents.protocol import AgentProtocol
from qlm.cli.clock import SystemClock
from qlm.cli.config import Config, InstanceConfig, StopConfig
from qlm.cli.config_grpc import GrpcConfig, read_tls
from qlm.cli.engines import model_host, operation_costs
from qlm.cli.monitor import monitor
from qlm.cli.parts import Parts, open_parts
from qlm.cli.plan_audit import PlanAuditor
from qlm.cli.plan_generator import PlanGenerator
from qlm.cli.telemetry import Telemetry, open_telemetry
from qlm.cli.wiring import (
    agent_settings,
    controller_settings,
    fleet,
    gateway_limits,
    group_ids,
    load_profiles,
    model_specs,
    new_controller_id,
    new_gateway_id,
    new_request_id,
)
from qlm.controller.fleet import Fleet
from qlm.controller.loop import ControllerLoop
from qlm.controller.reindex import Reindexer
from qlm.domain.errors import BrokerUnavailableError, QlmError, StoreUnavailableError
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.ids import InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.ports.broker import Broker
from qlm.planner.baselines.edf import plan_edf_late_last
from qlm.rct_estimator.profile import Profile

if TYPE_CHECKING:
    from qlm.gateway.gateway import Gateway
    from qlm.gateway.rpc.server import RpcDoor
    from qlm.gateway.server import QuietServer

log = logging.getLogger("qlm.cli")

RESTART_PAUSE_S: Final = 1.0


class PortInUseError(QlmError):
    """Another program listens where we were told to."""


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
        listener = _listen_at_doors(config, stack) if roles.gateway else None
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
        if listener is not None:
            doors.append(asyncio.create_task(_open_door(config, parts, clock, listener, telemetry)))
        await _until_stopped([*tasks, *doors])


def _listen_at_doors(config: Config, stack: AsyncExitStack) -> socket.socket:
    """Take the port of HTTP, and see that the one of gRPC is free, before anything is opened."""
    listener = _listen(config.http.host, config.http.port)
    stack.callback(listener.close)
    if config.grpc.port:
        _listen(config.grpc.host, config.grpc.port, "--grpc-port").close()
    return listener


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


async def _open_door(
    config: Config, parts: Parts, clock: SystemClock, listener: socket.socket, telemetry: Telemetry
) -> None:
    # Here, since the images of controller and agents have no web server.
    from qlm.gateway.app import app_of
    from qlm.gateway.gateway import create_gateway
    from qlm.gateway.server import create_server

    async with broker_of(parts) as broker:
        gateway = create_gateway(
            models=model_specs(config),
            broker=broker,
            store=parts.store,
            clock=clock,
            limits=gateway_limits(config),
            gateway_id=new_gateway_id(),
            new_id=new_request_id,
            registry=telemetry.registry,
            tracer=telemetry.tracer,
        )
        server = create_server(app_of(gateway))
        rpc_door = await _open_rpc_door(config.grpc, gateway)
        async with gateway.running():
            announcer = asyncio.create_task(_announce(config, parts))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                await asyncio.shield(serving)
            finally:
                announcer.cancel()
                await _close_doors(config.stop, gateway, server, serving, rpc_door)


async def _close_doors(
    stop: StopConfig,
    gateway: "Gateway",
    server: "QuietServer",
    serving: "asyncio.Task[None]",
    rpc_door: "RpcDoor | None",
) -> None:
    from qlm.gateway.stopping import stop_serving

    times = {"notice_s": stop.notice_s, "grace_s": stop.grace_s}
    closing = () if rpc_door is None else (rpc_door.stop(**times),)
    await asyncio.gather(stop_serving(server, serving, gateway.hub, **times), *closing)


async def _open_rpc_door(config: GrpcConfig, gateway: "Gateway") -> "RpcDoor | None":
    """Listen for gRPC; None if there is to be no such door."""
    if not config.port:
        return None
    # Read once, when gRPC is imported: of engines, started by fork and exec, it would complain in the log.
    # So it is imported here, by gateways only; the images of other parts do not have it.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    from qlm.gateway.rpc.server import RpcDoor

    door = RpcDoor(gateway)
    await door.start(config.host, config.port, read_tls(config))
    return door


async def _announce(config: Config, parts: Parts) -> None:
    """Say when the first and when the last engine of the fleet is up."""
    base = f"http://{config.http.host}:{config.http.port}"
    log.info("QLM listens on %s (OpenAI API under %s/v1)", base, base)
    if config.grpc.port:
        secured = "with TLS" if config.grpc.tls else "without TLS"
        log.info("and for gRPC on %s:%d (%s)", config.grpc.host, config.grpc.port, secured)
    wanted, ready = {instance.id for instance in config.instances}, set[str]()
    while ready != wanted:
        for status in await _live(parts):
            up = EngineState.AWAKE in dict(status.engines).values()
            if up and status.id not in ready:
                ready.add(status.id)
                log.info("%s (%s) serves %s", status.id, status.accelerator, status.active_model)
        await asyncio.sleep(0.2)
    log.info("ready: all %d instances are up", len(wanted))


async def _live(parts: Parts) -> tuple[InstanceStatus, ...]:
    try:
        return (await parts.store.view()).instances
    except StoreUnavailableError:
        return ()


@asynccontextmanager
async def broker_of(parts: Parts) -> AsyncIterator[Broker]:
    """Open a connection to the global queue for one holder, and close it after use."""
    broker = await parts.open_broker()
    try:
        yield broker
    finally:
        await broker.close()


def _listen(host: str, port: int, option: str = "--port") -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        why = (error.strerror or str(error)).lower()
        raise PortInUseError(
            f"cannot listen on {host}:{port}: {why}; stop what uses it, or give {option}"
        ) from error
    return listener


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
