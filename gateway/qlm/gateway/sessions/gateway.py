"""The parts of one gateway, wired together."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from prometheus_client import CollectorRegistry

from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import GatewayStore
from qlm.domain.ports.tracing import Tracer
from qlm.domain.shell.faults import FaultLog
from qlm.domain.shell.tasks import end_tasks
from qlm.gateway.api.errors import ApiError, defect
from qlm.gateway.core.admitted import Admitted
from qlm.gateway.core.configured import NOTHING_CONFIGURED, Configured
from qlm.gateway.core.limits import GatewayLimits
from qlm.gateway.core.tasks.memory import TaskMemory
from qlm.gateway.files.storage import Storage
from qlm.gateway.keys.key_ring import KeyRing
from qlm.gateway.observability.metrics import GatewayMetrics
from qlm.gateway.observability.tracing import RequestSpans
from qlm.gateway.render.rendering import RenderTiers
from qlm.gateway.sessions.families.accepting import Families
from qlm.gateway.sessions.hub import Hub
from qlm.gateway.sessions.intake import Intake
from qlm.gateway.sessions.load.load_watch import LoadWatch
from qlm.gateway.sessions.publisher import Publisher
from qlm.gateway.tokenizers.prompt_encoder import PromptEncoder
from qlm.gateway.tokenizers.served_models import ServedModels
from qlm.gateway.webhooks.endpoints import Webhooks

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """What a gateway is wired from; all of it stays the caller's to close.

    Attributes:
        models: The models that clients may name.
        broker: The global queue.
        store: The shared state.
        clock: The time.
        limits: Limits and defaults.
        gateway_id: Name under which the store announces output to this process; unique among processes.
        new_id: Returns an unused request id that no one can guess.
        registry: Registry of its metrics, which GET /metrics exposes; None for one of its own.
        tracer: Destination of its spans; None to make none.
        exposures: A warning for each of its listeners that is open to anyone.
        faults: Failures of the process.
        configured: What the configuration says of the deployment.
        render_tiers: Render tiers of models that have one.
        storage: Files and batches; None to keep none.
        webhooks: Endpoints that are notified of ends; None for none.
    """

    models: Sequence[ModelSpec]
    broker: Broker
    store: GatewayStore
    clock: Clock
    limits: GatewayLimits
    gateway_id: GatewayId
    new_id: Callable[[], RequestId]
    registry: CollectorRegistry | None = None
    tracer: Tracer | None = None
    exposures: Sequence[str] = ()
    faults: FaultLog = field(default_factory=FaultLog)
    configured: Configured = NOTHING_CONFIGURED
    render_tiers: RenderTiers = field(default_factory=lambda: MappingProxyType({}))
    storage: Storage | None = None
    webhooks: Webhooks | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts from which HTTP and gRPC handlers take what they need; only they know all of them.

    Attributes:
        models: The models served.
        broker: The global queue.
        store: The shared state.
        clock: The time.
        limits: Limits and defaults.
        new_id: Returns an unused request id.
        intake: Accepts requests.
        hub: The open subscriptions.
        load: The cluster's load and forecast.
        metrics: Counters.
        spans: Traces of requests.
        encoder: Tokenizes prompts.
        exposures: A warning for each of its listeners that is open to anyone.
        faults: Failures of the process.
        started_ns: Its start.
        configured: What the configuration says of the deployment.
        render_tiers: Render tiers of models that have one.
        keys: The API keys of clients.
        storage: Files and batches; None if it keeps none.
        families: Accepts requests for several answers.
        webhooks: Endpoints that are notified of ends; None if there are none.
    """

    models: ServedModels
    broker: Broker
    store: GatewayStore
    clock: Clock
    limits: GatewayLimits
    new_id: Callable[[], RequestId]
    intake: Intake
    hub: Hub
    load: LoadWatch
    metrics: GatewayMetrics
    spans: RequestSpans
    encoder: PromptEncoder
    exposures: Sequence[str]
    faults: FaultLog
    started_ns: int
    configured: Configured
    render_tiers: RenderTiers
    keys: KeyRing
    storage: Storage | None
    families: Families
    webhooks: Webhooks | None

    def notifies(self, types: Iterable[str], tenant: str) -> bool:
        """Return whether an endpoint is notified of ends of one of these types of a tenant."""
        return self.webhooks is not None and bool(self.webhooks.receivers(types, tenant))

    def failed(self, error: Exception, what: str) -> ApiError:
        """Note a defect that ended a call; return the error for its client, under a new id.

        The log has the first of each kind with id and traceback, and the others at level debug.
        """
        id, noted = self.new_id(), error
        if isinstance(error, TimeoutError):  # elsewhere that is a server that is away, which is not logged
            noted = RuntimeError("a time limit was not handled")
            noted = noted.with_traceback(error.__traceback__)
            noted.__cause__ = error
        self.faults.note(_log, noted, f"{what} %s failed", id, extra={"request_id": id})
        return defect(error, id)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the subscriptions and the watch on the cluster's load."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.hub.run()), group.create_task(self.load.run())]
            try:
                yield
            finally:
                self.encoder.close()
                await end_tasks(tasks)


def _load_watch(parts: GatewayParts, hub: Hub, admitted: Admitted) -> LoadWatch:
    return LoadWatch(
        store=parts.store,
        clock=parts.clock,
        hub=hub,
        faults=parts.faults,
        interval_s=parts.limits.view_interval_s,
        away_max_s=parts.limits.publish_timeout_s,
        admitted=admitted,
    )


def _publisher(
    parts: GatewayParts,
    hub: Hub,
    load: LoadWatch,
    metrics: GatewayMetrics,
    spans: RequestSpans,
    task_memory: TaskMemory,
) -> Publisher:
    return Publisher(
        broker=parts.broker,
        store=parts.store,
        clock=parts.clock,
        hub=hub,
        load=load,
        metrics=metrics,
        spans=spans,
        faults=parts.faults,
        task_memory=task_memory,
        timeout_s=parts.limits.publish_timeout_s,
    )


def create_gateway(parts: GatewayParts) -> Gateway:
    """Wire a gateway.

    Raises:
        InvalidValueError: A model's tokenizer cannot be read.
    """
    store, clock, limits, faults = parts.store, parts.clock, parts.limits, parts.faults
    served, task_memory, admitted = ServedModels(parts.models), TaskMemory(), Admitted()
    metrics, spans = _metrics(limits, parts.registry, parts.exposures), RequestSpans(parts.tracer)
    hub = Hub(
        models=served,
        store=store,
        clock=clock,
        limits=limits,
        gateway_id=parts.gateway_id,
        metrics=metrics,
        spans=spans,
        faults=faults,
        task_memory=task_memory,
        admitted=admitted,
    )
    load = _load_watch(parts, hub, admitted)
    encoder = PromptEncoder(limits.encode_inline_chars, limits.encode_threads)
    publisher = _publisher(parts, hub, load, metrics, spans, task_memory)
    intake = Intake(
        models=served,
        encoder=encoder,
        store=store,
        clock=clock,
        limits=limits,
        new_id=parts.new_id,
        hub=hub,
        load=load,
        publisher=publisher,
        render_tiers=parts.render_tiers,
        task_memory=task_memory,
    )
    return Gateway(
        models=served,
        broker=parts.broker,
        store=store,
        clock=clock,
        limits=limits,
        new_id=parts.new_id,
        intake=intake,
        hub=hub,
        load=load,
        metrics=metrics,
        spans=spans,
        encoder=encoder,
        exposures=parts.exposures,
        faults=faults,
        started_ns=clock.now_ns(),
        configured=parts.configured,
        render_tiers=parts.render_tiers,
        keys=KeyRing(store, clock, faults),
        storage=parts.storage,
        families=Families(
            intake=intake,
            hub=hub,
            store=store,
            load=load,
            models=served,
            encoder=encoder,
            limits=limits,
        ),
        webhooks=parts.webhooks,
    )


def _metrics(
    limits: GatewayLimits, registry: CollectorRegistry | None, exposures: Sequence[str]
) -> GatewayMetrics:
    metrics = GatewayMetrics(limits.metric_classes_max, registry)
    metrics.unprotected_listeners.set(len(exposures))
    return metrics
