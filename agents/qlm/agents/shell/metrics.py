"""Metrics of the agents of one process, read from their state at each scrape.

Label values are bounded: instances, models and operations are configured or fixed, classes capped.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from qlm.agents.core.agent import Agent
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.stats.gpu_time import BESIDE_WORK, GpuUse
from qlm.agents.shell.tracing import waited_in_queue
from qlm.domain.fleet import EngineState, InstanceStatus
from qlm.domain.ids import InstanceId
from qlm.domain.metric_labels import CLASSES_MAX, INSTANCE_LABEL, LATENCY_BUCKETS_S, ClassLabels
from qlm.domain.operations import OperationStats

_NS_PER_S: Final = 1e9

Gauge = tuple[str, str, Callable[[InstanceStatus], float | None]]

_GAUGES: Final[tuple[Gauge, ...]] = (
    ("qlm_agent_running_requests", "Requests in the engine's batch", lambda s: s.running),
    (
        "qlm_agent_parked_requests",
        "Preempted requests that wait here to be resumed",
        lambda s: sum(each.evicted for each in s.staged),
    ),
    (
        "qlm_agent_staged_requests",
        "Requests held here that have not run yet",
        lambda s: sum(each.fresh for each in s.staged),
    ),
    ("qlm_agent_kv_cache_used_tokens", "Tokens of KV cache in use", lambda s: s.kv_used_tokens),
    (
        "qlm_agent_kv_cache_usage_ratio",
        "Share of the awake engine's KV cache in use; absent while no engine is awake",
        lambda s: s.kv_usage,
    ),
    (
        "qlm_agent_batch_usage_ratio",
        "Share of the places in the awake engine's batch in use; absent while no engine is awake",
        lambda s: s.batch_usage,
    ),
    ("qlm_agent_draining", "1 while the instance takes no new work, else 0", lambda s: s.draining),
)


class AgentMetrics(Collector):
    """Collector of the metrics of all agents of one process."""

    def __init__(self, registry: CollectorRegistry, classes_max: int = CLASSES_MAX) -> None:
        """Register the metrics; `add` and `remove` set the agents to export."""
        self._agents: dict[InstanceId, Agent] = {}
        self._labels = ClassLabels(classes_max)
        queue_s = Histogram(
            "qlm_agent_request_queue_duration_seconds",
            "From a request's arrival until it first runs on an engine",
            ("model", "slo_class", INSTANCE_LABEL),
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )
        self._queue_s = cache(queue_s.labels)  # a lookup of labels takes four times as long
        registry.register(self)

    @property
    def agents(self) -> Iterable[Agent]:
        """The agents that are exported."""
        return self._agents.values()

    def add(self, agent: Agent) -> None:
        """Export this agent, in place of an earlier session of its instance."""
        self._agents[agent.state.holder.instance] = agent

    def remove(self, agent: Agent) -> None:
        """Stop exporting this agent, unless a newer session of its instance has replaced it."""
        if self._agents.get(agent.state.holder.instance) is agent:
            del self._agents[agent.state.holder.instance]

    def submitted(self, tracked: TrackedRequest, instance: InstanceId, now_ns: int) -> None:
        """Observe the queue time of a request that is submitted for the first time."""
        if waited_in_queue(tracked):
            labels = self._labels.of(tracked.request.cls)
            waited_s = max(0.0, (now_ns - tracked.request.arrival_ns) / _NS_PER_S)
            self._queue_s(*labels, instance).observe(waited_s)

    def collect(self) -> Iterator[Metric]:
        """Read the metrics of all agents."""
        agents = tuple(self._agents.values())
        yield from _families([agent.status() for agent in agents], [_leases(agent) for agent in agents])
        yield from _watchdog(agents)
        yield from _gpu_time(agents)

    def describe(self) -> Iterator[Metric]:
        """Return the metrics' names without reading any agent."""
        yield from _families([], [])
        yield from _watchdog(())
        yield from _gpu_time(())


def _leases(agent: Agent) -> int:
    return len(agent.state.requests.all) - len(agent.state.requests.leasing)


def _families(statuses: list[InstanceStatus], leases: list[int]) -> Iterator[Metric]:
    for name, about, read in _GAUGES:
        gauge = GaugeMetricFamily(name, about, labels=(INSTANCE_LABEL,))
        for status in statuses:
            if (value := read(status)) is not None:
                gauge.add_metric([status.id], value)
        yield gauge
    leased = GaugeMetricFamily(
        "qlm_agent_held_leases", "Leases that the agent holds", labels=(INSTANCE_LABEL,)
    )
    for status, count in zip(statuses, leases, strict=True):
        leased.add_metric([status.id], count)
    yield leased
    yield _engines(statuses)
    yield from _operations([(status.id, status.operations) for status in statuses])


def _watchdog(agents: Iterable[Agent]) -> Iterator[Metric]:
    restarts = CounterMetricFamily(
        "qlm_agent_engine_restarts",
        "Restarts of engines that made no progress while requests ran",
        labels=("model", INSTANCE_LABEL),
    )
    broken = CounterMetricFamily(
        "qlm_agent_generations_broken",
        "Generations given up: `cut` without progress on a working engine, `garbled` with unreadable output",
        labels=("kind", INSTANCE_LABEL),
    )
    for agent in agents:
        instance, watch = agent.state.holder.instance, agent.state.stats.progress
        for model in agent.state.engines.models:
            restarts.add_metric([model, instance], watch.restarted.get(model, 0))
        broken.add_metric(["cut", instance], watch.cut)
        broken.add_metric(["garbled", instance], watch.garbled)
    yield from (restarts, broken)


def _gpu_time(agents: Iterable[Agent]) -> Iterator[Metric]:
    seconds = CounterMetricFamily(
        "qlm_agent_gpu_seconds",
        "Time of the instance by use; idle time is split by its own virtual queue",
        labels=(INSTANCE_LABEL, "use"),
    )
    longest = GaugeMetricFamily(
        "qlm_agent_idle_longest_seconds",
        "Longest idle time at once in this session while work waited in its own virtual queue",
        labels=(INSTANCE_LABEL, "use"),
    )
    for agent in agents:
        instance, time = agent.state.holder.instance, agent.state.stats.gpu_time
        for use in GpuUse:
            seconds.add_metric([instance, use.value], time.ns[use] / _NS_PER_S)
        for use in BESIDE_WORK:
            longest.add_metric([instance, use.value], time.longest_ns[use] / _NS_PER_S)
    yield from (seconds, longest)


def _engines(statuses: list[InstanceStatus]) -> Metric:
    family = GaugeMetricFamily(
        "qlm_agent_engine_state",
        "1 for the state that the engine of a model is in, 0 for the others",
        labels=(INSTANCE_LABEL, "model", "state"),
    )
    for status in statuses:
        for model, present in status.engines:
            for state in EngineState:
                family.add_metric([status.id, model, state.value], state is present)
    return family


def _operations(stats: list[tuple[InstanceId, OperationStats]]) -> Iterator[Metric]:
    labels = ("operation", "model", INSTANCE_LABEL)
    count = CounterMetricFamily("qlm_operations", "LLM serving operations done", labels=labels)
    took = SummaryMetricFamily(
        "qlm_operation_duration_seconds",
        "From the decision for an LLM serving operation to its effect",
        labels=labels,
    )
    lost = CounterMetricFamily(
        "qlm_model_swap_lost_seconds",
        "Time without a serving model, by the queue of the class whose group had the models swapped",
        labels=("class", INSTANCE_LABEL),
    )
    thrashed = CounterMetricFamily(
        "qlm_model_swaps_thrashed",
        "Model swaps that brought back a model within 60 s of its going",
        labels=(INSTANCE_LABEL,),
    )
    ended = CounterMetricFamily(
        "qlm_agent_generations_ended",
        "Generations that finished by themselves",
        labels=(INSTANCE_LABEL,),
    )
    for instance, each in stats:
        for done in each.counts:
            values = [done.operation.value, done.model, instance]
            count.add_metric(values, done.count)
            took.add_metric(values, done.count, done.seconds)
        for charge in each.swap_lost:
            lost.add_metric([charge.cls, instance], charge.seconds)
        thrashed.add_metric([instance], each.swaps_thrashed)
        ended.add_metric([instance], each.ended)
    yield from (count, took, lost, thrashed, ended)
