"""The parts of one gateway, wired together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from qlm.domain.fleet import ModelSpec
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.ports.broker import Broker
from qlm.domain.ports.clock import Clock
from qlm.domain.ports.store import Store
from qlm.domain.ports.tracing import Tracer
from qlm.gateway.byte_tokenizer import ByteTokenizer
from qlm.gateway.errors import ApiError, shown
from qlm.gateway.hf_tokenizer import HfTokenizer
from qlm.gateway.hub import Hub
from qlm.gateway.limits import GatewayLimits
from qlm.gateway.load_watch import LoadWatch
from qlm.gateway.metrics import GatewayMetrics
from qlm.gateway.session import Timing
from qlm.gateway.tokenizer import ServedModel, Tokenizer
from qlm.gateway.tracing import RequestSpans


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """What the handlers of a gateway work with.

    Attributes:
        models: Served models by name.
        broker: The global queue.
        store: The shared state.
        clock: The time.
        limits: Limits and defaults.
        new_id: Makes ids no one has used.
        hub: The open sessions.
        load: What is known of the cluster.
        metrics: Counters.
        spans: The traces of requests.
        encoders: Threads for long prompts.
    """

    models: Mapping[str, ServedModel]
    broker: Broker
    store: Store
    clock: Clock
    limits: GatewayLimits
    new_id: Callable[[], RequestId]
    hub: Hub
    load: LoadWatch
    metrics: GatewayMetrics
    spans: RequestSpans
    encoders: ThreadPoolExecutor

    def served(self, model: str) -> ServedModel:
        """Find a model.

        Raises:
            ApiError: It is not served here.
        """
        if (served := self.models.get(model)) is None:
            message = f"model is {shown(model)}; expected one of {', '.join(self.models)}"
            raise ApiError(status=404, message=message, param="model", code="model_not_found")
        return served

    def timing(self, grace_s: float) -> Timing:
        """Pauses of a session whose client may be away for `grace_s`."""
        limits = self.limits
        return Timing(
            keepalive_ns=_ns(limits.keepalive_s),
            poll_ns=_ns(limits.poll_s),
            poll_max_ns=_ns(limits.poll_max_s),
            grace_ns=_ns(grace_s),
            lost_after_ns=_ns(limits.lost_after_s),
            unknown_after_ns=_ns(limits.unknown_after_s),
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the sessions and the looks at the cluster going."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.hub.run()), group.create_task(self.load.run())]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                self.encoders.shutdown(wait=False, cancel_futures=True)


def create_gateway(
    models: Sequence[ModelSpec],
    broker: Broker,
    store: Store,
    clock: Clock,
    limits: GatewayLimits,
    gateway_id: GatewayId,
    new_id: Callable[[], RequestId],
    registry: CollectorRegistry | None = None,
    tracer: Tracer | None = None,
) -> Gateway:
    """Wire a gateway; see `app.create_app`.

    Raises:
        InvalidValueError: A tokenizer cannot be read.
    """
    metrics = GatewayMetrics(limits.metric_classes_max, registry)
    spans = RequestSpans(tracer)
    hub = Hub(store, clock, gateway_id, metrics, spans)
    return Gateway(
        models={spec.id: ServedModel(spec, load_tokenizer(spec)) for spec in models},
        broker=broker,
        store=store,
        clock=clock,
        limits=limits,
        new_id=new_id,
        hub=hub,
        load=LoadWatch(store, clock, hub, limits.view_interval_s),
        metrics=metrics,
        spans=spans,
        encoders=ThreadPoolExecutor(limits.encode_threads, "encode"),
    )


def load_tokenizer(spec: ModelSpec) -> Tokenizer:
    """Make a model's tokenizer.

    Raises:
        InvalidValueError: Its directory holds no readable one.
    """
    return ByteTokenizer() if spec.tokenizer == "byte" else HfTokenizer(Path(spec.tokenizer))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
