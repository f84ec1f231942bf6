"""Runs gateway, controller and agents in one process, in any combination."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from qlm.agents.core.agent import Agent
from qlm.agents.core.stats.gpu_time import GpuTime
from qlm.agents.engines.orphans import kill_orphans
from qlm.agents.shell.idle_log import idle_log
from qlm.agents.shell.own_process import has_ended, own_process
from qlm.agents.shell.runner import AgentRunner
from qlm.cli.config.addresses import secret_variables
from qlm.cli.config.fleet import InstanceConfig
from qlm.cli.config.listeners.access import for_operators, monitor_rules
from qlm.cli.config.settings import Config
from qlm.cli.plans.audit import PlanAuditor
from qlm.cli.plans.tables import count
from qlm.cli.processes.ending import exit_at_once
from qlm.cli.processes.totals import WorkerTotals
from qlm.cli.processes.workers import Workers, WorkerTask, check_workers
from qlm.cli.runtime.backends import Backends, broker_client, open_backends
from qlm.cli.runtime.clock import SystemClock
from qlm.cli.runtime.engines import hosted_policy, model_host, operation_costs
from qlm.cli.runtime.logs import LogFormat
from qlm.cli.runtime.monitor import monitor
from qlm.cli.runtime.plan_generator import PlanGenerator
from qlm.cli.runtime.telemetry import Telemetry, open_telemetry
from qlm.cli.runtime.wiring import (
    agent_settings,
    controller_settings,
    fleet,
    group_ids,
    load_profiles,
    new_controller_id,
)
from qlm.cli.speed.choice import warn_of_profiles
from qlm.controller.shell.loop import ControllerLoop
from qlm.controller.shell.reindex import Reindexer
from qlm.domain.errors import InstanceHeldError
from qlm.domain.ids import InstanceId, ModelId, SessionId
from qlm.domain.lease import Holder
from qlm.domain.shell.damage import NO_CONSENT, Consent
from qlm.domain.shell.faults import FaultKind, FaultLog
from qlm.domain.shell.heap import settle_heap
from qlm.domain.shell.tasks import end_tasks, run_together
from qlm.planner.baselines.edf import plan_edf_late_last
from qlm.rct_estimator.profiles.profile import Profile

log = logging.getLogger("qlm.cli")

RESTART_PAUSE_S: Final = 1.0

SHUTDOWN_S: Final = 60.0
"""Time of a stop beyond its configured notice and grace, for engines and servers to end."""

AT_ONCE_S: Final = 30.0
"""Time to stop after a second signal; what still goes on then is blocked."""

CLEANUP_S: Final = 5.0
"""Time of a controller to resign."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Parts that this process runs.

    Attributes:
        gateway: Run a gateway.
        controller: Run a controller.
        instances: Names of the instances whose agents run here.
        ray: Supervise the agents of all instances under Ray.
    """

    gateway: bool
    controller: bool
    instances: tuple[str, ...]
    ray: bool = False

    @property
    def name(self) -> str:
        """Name of the process in telemetry."""
        parts = {
            "gateway": self.gateway,
            "controller": self.controller,
            "agent": bool(self.instances),
            "agents": self.ray,
        }
        named = [name for name, runs in parts.items() if runs]
        return named[0] if len(named) == 1 else "serve"


async def serve(
    config: Config,
    roles: Roles,
    beside: Callable[[Backends, FaultLog], Coroutine[Any, Any, None]] | None = None,
    consent: Consent = NO_CONSENT,
    log_format: LogFormat = "text",
) -> None:
    """Run parts until a signal stops them.

    Args:
        config: The whole configuration.
        roles: The parts.
        beside: Further work beside them.
        consent: Consent to damage of the embedded queue and state.
        log_format: Format of its log, for gateway workers.

    Raises:
        QlmError: A requirement is missing; the message is one clear sentence.
    """
    clock = SystemClock()
    check_workers(config)
    profiles = load_profiles(config.profiles)
    totals = _totals(config, roles)
    async with AsyncExitStack() as stack:
        telemetry = open_telemetry(
            config,
            clock,
            stack,
            part=roles.name,
            controller=roles.controller,
            instances=roles.instances,
            registry=totals,
        )
        if roles.gateway:
            # Imported here, since the images of controller and agents have no tokenizers and no gRPC.
            from qlm.cli.runtime.listeners import bind_ports, serve_gateway

            sockets = bind_ports(config, stack)
        outage = telemetry.health.broker_outage
        opened = await open_backends(config, clock, stack, telemetry.faults, consent, outage)
        backends = await stack.enter_async_context(telemetry.health.watching(opened))
        if backends.embedded:
            await _reindex(backends, clock)
        if roles.instances:
            await kill_orphaned_engines(config)
        stop_s = config.stop.notice_s + config.stop.grace_s + SHUTDOWN_S
        tasks = await stack.enter_async_context(_task_group(stop_s))
        if not roles.gateway:
            await stack.enter_async_context(monitoring(config, telemetry))
        if roles.controller:
            tasks.append(asyncio.create_task(_control(config, backends, profiles, clock, telemetry)))
        for instance in config.instances:
            if instance.id in roles.instances:
                secrets = secret_variables(config)
                work = serve_instance(config, instance, backends, profiles, clock, telemetry, secrets)
                tasks.append(asyncio.create_task(work))
        if beside is not None:
            tasks.append(asyncio.create_task(beside(backends, telemetry.faults)))
        # The gateway ends before the others: agents of this process still answer while its clients wait.
        gateways = await stack.enter_async_context(_task_group(stop_s))
        if roles.gateway:
            task = WorkerTask(config, log.getEffectiveLevel(), log_format)
            workers = None if totals is None else Workers(task, clock, sockets.http, opened, totals)
            serving = serve_gateway(config, backends, clock, sockets, telemetry, workers)
            gateways.append(asyncio.create_task(serving))
        settle_heap()
        await _until_stopped([*tasks, *gateways])


def _totals(config: Config, roles: Roles) -> WorkerTotals | None:
    if not (roles.gateway and config.http.workers):
        return None
    return WorkerTotals(config.limits.metric_classes_max)


def monitoring(config: Config, telemetry: Telemetry) -> AbstractAsyncContextManager[int]:
    """Serve metrics and health of this process on a separate port."""
    rules, limits = monitor_rules(config), for_operators(config.connections)
    return monitor(config.monitor, telemetry.registry, telemetry.health, telemetry.readiness, rules, limits)


async def kill_orphaned_engines(config: Config) -> None:
    """Kill engine processes that a killed agent left behind: they would hold accelerator memory."""
    killed = await asyncio.to_thread(kill_orphans, config.data_dir / "engines")
    if killed:
        log.warning("killed %d orphaned engine processes of an earlier agent", len(killed))


async def _reindex(backends: Backends, clock: SystemClock) -> None:
    async with broker_client(backends) as broker:
        found = await Reindexer(broker, backends.store, clock).index_all()
    if found:
        log.info("found %s in the queue, accepted before this start", count(found, "request"))


async def _control(
    config: Config,
    backends: Backends,
    profiles: Sequence[Profile],
    clock: SystemClock,
    telemetry: Telemetry,
) -> None:
    known = fleet(config, profiles)
    warn_of_profiles(config.models, config.instances, profiles)
    generator = PlanGenerator(config.data_dir)
    async with broker_client(backends) as broker, _task_group(CLEANUP_S) as tasks:
        loop = ControllerLoop(
            name=new_controller_id(),
            store=backends.store,
            broker=broker,
            clock=clock,
            fleet=known,
            settings=controller_settings(config),
            planner=generator if config.planner == "qlm" else plan_edf_late_last,
            new_group_id=group_ids(),
            metrics=telemetry.controller,
            faults=telemetry.faults,
        )
        if config.planner == "qlm":
            tasks.append(asyncio.create_task(_load_planner(generator)))
            if telemetry.controller is not None:
                auditor = PlanAuditor(telemetry.controller, generator, telemetry.faults)
                tasks.append(asyncio.create_task(auditor.run()))
        await run_together(loop.run(), grace_s=CLEANUP_S)


async def _load_planner(generator: PlanGenerator) -> None:
    await generator.get_ready()
    settle_heap()


async def serve_instance(
    config: Config,
    instance: InstanceConfig,
    backends: Backends,
    profiles: tuple[Profile, ...],
    clock: SystemClock,
    telemetry: Telemetry,
    withheld: Collection[str],
    *,
    patient: bool = False,
) -> None:
    """Run one agent until it is drained; restart it with a new session after a failure.

    Args:
        config: The whole configuration.
        instance: The instance that it serves.
        backends: Broker and store.
        profiles: All profiles.
        clock: The clock.
        telemetry: Metrics and traces of the process.
        withheld: Names of variables that its engines do not inherit.
        patient: Wait while another agent has the lease of the instance.

    Raises:
        InstanceHeldError: Another agent has the lease, or has taken it over; never if `patient`.
    """
    models = [ModelId(model) for model in instance.models]
    new_policy = await hosted_policy(instance)
    while True:
        holder = Holder(InstanceId(instance.id), SessionId(token_hex(8)))
        costs = operation_costs(config, instance, profiles)
        gpu_time = GpuTime(idle_log(holder.instance))
        protocol = Agent(
            holder, instance.kind, models, agent_settings(config, instance), costs, gpu_time=gpu_time,
            new_policy=new_policy,
        )  # fmt: skip
        host = model_host(config, instance, profiles, withheld, telemetry.faults)
        away = lost = False
        try:
            async with broker_client(backends) as broker:
                runner = AgentRunner(
                    protocol,
                    broker=broker,
                    store=backends.store,
                    host=host,
                    clock=clock,
                    on_submitted=telemetry.agents.submitted if telemetry.agents else None,
                    tracer=telemetry.tracer,
                    faults=telemetry.faults,
                    process=own_process(clock.now_ns()),
                    has_ended=has_ended,
                )
                with telemetry.agent(protocol):
                    await runner.run(config.stop.grace_s, patient=patient)
        except InstanceHeldError as error:
            if not patient:
                raise
            log.error("%s", error)
            lost = True
        except Exception as error:
            kind = telemetry.faults.note(log, error, "%s: the agent failed", instance.id)
            away = kind is FaultKind.UNAVAILABLE  # the process logs that once
        finally:
            await host.close()
        if protocol.state.drained and not lost:
            log.info("%s is drained", instance.id)
            return
        level = logging.DEBUG if away or lost else logging.ERROR
        log.log(level, "%s: agent stopped; a new one starts", instance.id)
        await asyncio.sleep(RESTART_PAUSE_S)


@asynccontextmanager
async def _task_group(grace_s: float) -> AsyncIterator[list[asyncio.Task[None]]]:
    """End all collected tasks at the end; `grace_s` is their time to finish before they are cut off."""
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        await end_tasks(tasks, grace_s=grace_s)


async def _until_stopped(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for SIGINT, SIGTERM, the failure of a task, or the end of all of them.

    A second signal cancels what the tasks still have to finish, and ends the process if that takes too long.
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
        _cancel_on_second_signal(tasks)
        await end_tasks([stopped])


def _cancel_on_second_signal(tasks: list[asyncio.Task[None]]) -> None:
    loop = asyncio.get_running_loop()

    def cancel_all() -> None:
        log.warning("stopping at once")
        for task in tasks:
            task.cancel()
        loop.call_later(AT_ONCE_S, give_up)

    def give_up() -> None:
        log.error("not stopped %g s after the second signal, and given up", AT_ONCE_S)
        exit_at_once()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancel_all)
