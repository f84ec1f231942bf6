"""Telemetry of one process: metrics of all its parts in one registry, spans, readiness."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, disable_created_metrics

from qlm.agents.core.agent import Agent
from qlm.agents.shell.metrics import AgentMetrics
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.observability import TracingConfig
from qlm.cli.config.settings import Config
from qlm.cli.runtime.health import OK, Health
from qlm.controller.shell.metrics import ControllerMetrics
from qlm.domain.errors import extra_hint
from qlm.domain.fleet import EngineState
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.tracing import Tracer
from qlm.domain.shell.faults import FaultKind, FaultLog

if TYPE_CHECKING:
    # The package comes with the extra `tracing`, and is imported only if tracing is configured.
    from qlm.agents.shell.otlp import OtelTracer


class Telemetry:
    """Telemetry of one process.

    Attributes:
        registry: All its metrics.
        health: Health of broker and store.
        agents: Metrics of its agents; None if it runs none.
        controller: Metrics of its controller; None if it runs none.
        tracer: Tracer for spans; None if tracing is off.
        faults: Failures of all its parts.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        controller: bool,
        agents: bool,
        tracer: Tracer | None = None,
        registry: CollectorRegistry | None = None,
        accelerators: Iterable[str] = (),
        instances: Iterable[str] = (),
    ) -> None:
        """Create the metrics of the parts that run here.

        Args:
            clock: Clock of the process.
            controller: Create those of a controller.
            agents: Create those of agents.
            tracer: Tracer for spans.
            registry: Registry for the metrics; a new one by default.
            accelerators: Kinds of the configured instances.
            instances: Instances whose agents run here until the process ends.
        """
        # `process_start_time_seconds` gives the start of all series, with half as many series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = registry or CollectorRegistry()
        self.faults = FaultLog(_fault_counter(registry))
        self.health = Health(registry, self.faults)
        self.agents = AgentMetrics(registry) if agents else None
        self.controller = (
            ControllerMetrics(registry, clock.now_ns, accelerators=accelerators) if controller else None
        )
        self.tracer = tracer
        self._instances = tuple(instances)
        info = Gauge(
            "qlm_build_info",
            "Always 1; the label `version` gives the version",
            ("version",),
            registry=registry,
        )
        info.labels(version("qlm-serving")).set(1)
        ProcessCollector(registry=registry)

    @contextmanager
    def agent(self, agent: Agent) -> Iterator[None]:
        """Export the metrics of an agent while inside."""
        if self.agents is None:
            yield
            return
        self.agents.add(agent)
        try:
            yield
        finally:
            self.agents.remove(agent)

    def readiness(self) -> dict[str, str]:
        """Return the readiness of each agent here: `ok` or a reason."""
        agents = () if self.agents is None else self.agents.agents
        starting = dict.fromkeys(self._instances, "its agent is starting")
        return starting | {agent.state.holder.instance: readiness_of(agent) for agent in agents}


def _fault_counter(registry: CollectorRegistry) -> Callable[[FaultKind], None]:
    counter = Counter(
        "qlm_faults",
        "Failed calls and turns of this process, by kind: unavailable, refused, bug",
        ("kind",),
        registry=registry,
    )
    counters = {kind: counter.labels(kind) for kind in FaultKind}
    return lambda kind: counters[kind].inc()


def readiness_of(agent: Agent) -> str:
    """Return the reason why an agent is not ready, or `ok`.

    It is ready from its first engine on, also while another one starts; not while all have failed.
    Kubernetes, which replaces agents one by one, waits for that before it stops the next one.
    """
    engines = agent.state.engines
    failed = EngineState.FAILED in engines.states.values()
    if not engines.served:
        return (failed and agent.status().error) or "its first engine is starting"
    if engines.active is not None or engines.swapping_to is not None or not failed:
        return OK
    return agent.status().error or "its engine failed"


def open_telemetry(
    config: Config,
    clock: Clock,
    stack: AsyncExitStack,
    *,
    part: str,
    controller: bool,
    instances: Collection[str] = (),
    registry: CollectorRegistry | None = None,
) -> Telemetry:
    """Create the telemetry of a process; the stack closes it.

    Args:
        config: The whole configuration.
        clock: Clock of the process.
        stack: Closes the tracer.
        part: Name of the process in spans.
        controller: True if it runs a controller.
        instances: Instances whose agents it runs.
        registry: Registry for the metrics; a new one by default.

    Raises:
        ConfigError: Tracing is configured and not installed.
    """
    endpoint = config.tracing.traces_endpoint
    tracer = None if endpoint is None else _tracer(config.tracing, endpoint, part)
    if tracer is not None:
        stack.push_async_callback(asyncio.to_thread, tracer.close)
    kinds = {instance.kind for instance in config.instances}
    return Telemetry(
        clock,
        controller=controller,
        agents=bool(instances),
        tracer=tracer,
        registry=registry,
        accelerators=kinds,
        instances=instances,
    )


def _tracer(config: TracingConfig, endpoint: str, part: str) -> "OtelTracer":
    try:
        from qlm.agents.shell.otlp import otlp_tracer
    except ImportError as error:
        raise ConfigError(
            f"tracing.endpoint is {config.endpoint!r}, which needs the package {error.name}: "
            f"{extra_hint('tracing')}"
        ) from error
    return otlp_tracer(endpoint, config.sample, part)
