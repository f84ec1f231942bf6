"""What one process tells of itself: metrics of all its parts in one registry, spans, readiness."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics

from qlm.agents.metrics import AgentMetrics
from qlm.agents.protocol import AgentProtocol
from qlm.cli.config import Config
from qlm.cli.config_errors import ConfigError
from qlm.cli.config_observe import TracingConfig
from qlm.cli.health import OK, Health
from qlm.controller.metrics import ControllerMetrics
from qlm.domain.fleet import EngineState
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.tracing import Tracer

if TYPE_CHECKING:
    from qlm.agents.otlp import OtelTracer


class Telemetry:
    """The telemetry of one process.

    Attributes:
        registry: All its metrics.
        health: How broker and store are.
        agents: Metrics of its agents; None if it runs none.
        controller: Metrics of its controller; None if it runs none.
        tracer: Where spans go; None: nowhere.
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
    ) -> None:
        """Make the metrics of the parts that run here.

        Args:
            clock: The time.
            controller: Whether a controller does.
            agents: Whether agents do.
            tracer: Where spans go.
            registry: Where the metrics go; one of their own if not given.
            accelerators: Kinds of the configured instances.
        """
        # Since when a series counts, process_start_time_seconds tells with half the series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = registry or CollectorRegistry()
        self.health = Health(registry)
        self.agents = AgentMetrics(registry) if agents else None
        self.controller = (
            ControllerMetrics(registry, clock.now_ns, accelerators=accelerators) if controller else None
        )
        self.tracer = tracer
        info = Gauge(
            "qlm_build_info", "Always 1; its label tells the version", ("version",), registry=registry
        )
        info.labels(version("qlm-serving")).set(1)
        ProcessCollector(registry=registry)

    @contextmanager
    def agent(self, protocol: AgentProtocol) -> Iterator[None]:
        """Tell of an agent while inside."""
        if self.agents is None:
            yield
            return
        self.agents.add(protocol)
        try:
            yield
        finally:
            self.agents.remove(protocol)

    def troubles(self) -> dict[str, str]:
        """Tell of each agent here whether it is ready: `ok`, or why it is not."""
        agents = () if self.agents is None else self.agents.agents
        return {agent.holder.instance: trouble(agent) for agent in agents}


def trouble(agent: AgentProtocol) -> str:
    """Why an agent is not ready: its engines failed, and none is up or being brought up; else `ok`."""
    states = agent.engines.values()
    if EngineState.AWAKE in states or agent.swapping_to is not None or EngineState.FAILED not in states:
        return OK
    return agent.status().error or "its engine failed"


def open_telemetry(
    config: Config, clock: Clock, stack: AsyncExitStack, *, part: str, controller: bool, agents: bool
) -> Telemetry:
    """Make the telemetry of a process; the stack ends it.

    Args:
        config: The whole configuration.
        clock: The time.
        stack: Takes what is to be closed.
        part: What this process is to those who read its spans.
        controller: Whether it runs a controller.
        agents: Whether it runs agents.

    Raises:
        ConfigError: Tracing is configured and not installed.
    """
    endpoint = config.tracing.traces_endpoint
    tracer = None if endpoint is None else _tracer(config.tracing, endpoint, part)
    if tracer is not None:
        stack.push_async_callback(asyncio.to_thread, tracer.close)
    kinds = {instance.kind for instance in config.instances}
    return Telemetry(clock, controller=controller, agents=agents, tracer=tracer, accelerators=kinds)


def _tracer(config: TracingConfig, endpoint: str, part: str) -> "OtelTracer":
    try:
        from qlm.agents.otlp import otlp_tracer
    except ImportError as error:
        raise ConfigError(
            f"tracing.endpoint is {config.endpoint!r}, which needs the package {error.name}; "
            "expected QLM installed with its extra `tracing`"
        ) from error
    return otlp_tracer(endpoint, config.sample, part)
