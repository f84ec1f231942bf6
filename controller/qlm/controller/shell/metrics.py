"""Metrics of a controller; only the leader exports those of the whole cluster.

They are computed from the latest turn when they are scraped. Label values are bounded: models, accelerators
and instances are configured, classes are capped.
"""

import logging
from collections import Counter as Count
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from qlm.agents.core.stats.gpu_time import BESIDE_WORK, GpuUse, Interval
from qlm.controller.core.decide import Decision
from qlm.controller.core.idle_instances import IdleInstances
from qlm.controller.core.problem import accelerator_of
from qlm.domain.fleet import InstanceStatus
from qlm.domain.ids import InstanceId
from qlm.domain.metric_labels import CLASSES_MAX, INSTANCE_LABEL, ClassLabels
from qlm.domain.view import ClassView, ClusterView
from qlm.planner.audit import Audit
from qlm.planner.policy.fallback import FailureKind

log = logging.getLogger("qlm.controller")

_PLAN_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the leader: the view and the decision."""

    view: ClusterView
    decision: Decision

    @property
    def live(self) -> Count[str]:
        """Instances that take work, by accelerator."""
        return Count(each.accelerator for each in self.view.instances if not each.draining)


class ControllerMetrics(Collector):
    """The metrics of one controller.

    Attributes:
        turn: The latest turn; None while this controller does not lead.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        now_ns: Callable[[], int],
        classes_max: int = CLASSES_MAX,
        accelerators: Iterable[str] = (),
    ) -> None:
        """Register the metrics.

        Args:
            registry: The registry.
            now_ns: The time, nanoseconds since the epoch.
            classes_max: Largest number of SLO classes with their own label.
            accelerators: Kinds of the configured instances, exported even if none of them is alive.
        """
        self._accelerators = frozenset(accelerators)
        self.turn: Turn | None = None
        self._now_ns = now_ns
        self._labels = ClassLabels(classes_max)
        self._audit: Audit | None = None
        self._needed: Mapping[str, int] = {}
        self._instances = IdleInstances(_log_idle)
        self._leader = Gauge("qlm_controller_leader", "1 if this controller leads, else 0", registry=registry)
        self._plan_s = Histogram(
            "qlm_controller_plan_duration_seconds",
            "Time to form groups, estimate and plan, by turn",
            registry=registry,
            buckets=_PLAN_BUCKETS_S,
        )
        self._skipped = Counter(
            "qlm_controller_turns_skipped",
            "Turns given up because store or broker was away",
            registry=registry,
        )
        self._store_warnings = Gauge(
            "qlm_controller_store_warnings",
            "What breaks promises of the store or soon will, such as memory that is nearly used up; "
            "`qlm doctor` says what",
            registry=registry,
        )
        self._moved = Counter(
            "qlm_controller_groups_moved",
            "Groups that a plan moved to this instance from another one (load balancing)",
            (INSTANCE_LABEL,),
            registry=registry,
        )
        self._failed = Counter(
            "qlm_controller_planner_failures",
            "Plans made by earliest deadline first, or without a new placement of models, after a failure",
            ("kind",),
            registry=registry,
        )
        for kind in FailureKind:
            self._failed.labels(kind)
        registry.register(self)

    def planned(self, view: ClusterView, decision: Decision, took_s: float) -> None:
        """Record a turn as leader; its decision took `took_s`."""
        self.turn = Turn(view, decision)
        self._instances.observe(view, self._now_ns())
        self._instances.explain(decision.problem, decision.plan)
        self._leader.set(1)
        self._plan_s.observe(took_s)
        for instance, groups in decision.moves.items():
            self._moved.labels(instance).inc(groups)
        for failure in decision.failures:
            self._failed.labels(failure.kind).inc()

    def stood_by(self) -> None:
        """Record that another controller leads."""
        self.turn = self._audit = None
        self._needed = {}
        self._store_warnings.set(0)
        self._leader.set(0)

    def store_warned(self, warnings: int) -> None:
        """Record the number of warnings of the store."""
        self._store_warnings.set(warnings)

    def skipped(self) -> None:
        """Record a skipped turn."""
        self._skipped.inc()

    def audited(self, turn: Turn, audit: Audit | None) -> None:
        """Record the audit of the plan of a turn; None for a plan without late requests."""
        self._audit = audit
        self._needed = {} if audit is None else _needed(turn, audit)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics of the latest turn."""
        return self._families(self.turn)

    def describe(self) -> Iterator[Metric]:
        """Return the metrics without values."""
        return self._families(None)

    def _families(self, turn: Turn | None) -> Iterator[Metric]:
        yield from self._queues(() if turn is None else turn.view.classes)
        yield from _pool(turn, self._accelerators)
        yield from self._plan(turn)
        yield self._idle()

    def _queues(self, classes: tuple[ClassView, ...]) -> Iterator[Metric]:
        labels, now_ns = ("model", "slo_class", "late"), self._now_ns()
        size = GaugeMetricFamily(
            "qlm_controller_queue_size", "Requests that wait; late: they cannot be in time", labels=labels
        )
        oldest = GaugeMetricFamily(
            "qlm_controller_queue_oldest_seconds", "Age of the oldest request that waits", labels=labels
        )
        groups = GaugeMetricFamily("qlm_controller_groups", "Request groups that are open", labels=labels)
        waiting: Count[tuple[str, ...]] = Count()
        open_groups: Count[tuple[str, ...]] = Count()
        age_s: dict[tuple[str, ...], float] = {}
        for view in classes:
            key = (*self._labels.of(view.cls), str(view.cls.late).lower())
            waiting[key] += view.queued
            open_groups[key] += len(view.groups)
            if (since_ns := view.oldest_arrival_ns) is not None:
                age_s[key] = max(age_s.get(key, 0.0), (now_ns - since_ns) / 1e9)
        for each, count in waiting.items():
            size.add_metric(each, count)
            groups.add_metric(each, open_groups[each])
            oldest.add_metric(each, age_s.get(each, 0.0))
        yield from (size, oldest, groups)

    def _idle(self) -> Metric:
        idle = CounterMetricFamily(
            "qlm_controller_idle_seconds",
            "Idle time of an instance by what waited anywhere, by its heartbeats while this controller led",
            labels=(INSTANCE_LABEL, "use"),
        )
        for instance, time in self._instances.times.items():
            for use in (*BESIDE_WORK, GpuUse.IDLE):
                idle.add_metric([instance, use.value], time.ns[use] / 1e9)
        return idle

    def _plan(self, turn: Turn | None) -> Iterator[Metric]:
        wanted = GaugeMetricFamily(
            "qlm_controller_recommended_instances",
            "Instances of an accelerator that would serve what waits in time: live ones and missing ones",
            labels=("accelerator",),
        )
        late = GaugeMetricFamily(
            "qlm_controller_plan_late_requests",
            "Requests that the plan expects to be late, as of its last audit",
        )
        gap = GaugeMetricFamily(
            "qlm_controller_plan_gap_ratio",
            "Share of the plan's penalty that a better plan could save at most, as of its last audit",
        )
        if turn is not None:
            for kind, count in _recommended(turn, self._needed).items():
                wanted.add_metric([kind], count)
            late.add_metric([], 0.0 if self._audit is None else self._audit.late_requests)
            gap.add_metric([], 0.0 if self._audit is None else self._audit.gap)
        yield from (wanted, late, gap)
        yield _known_answers(turn)


def _known_answers(turn: Turn | None) -> Metric:
    answers = GaugeMetricFamily(
        "qlm_controller_known_answers",
        "Answers from which the lengths of a model are known, those of earlier controllers included",
        labels=("model",),
    )
    counts: Count[str] = Count()
    for cls, record in () if turn is None else turn.decision.estimator.records.items():
        counts[cls.model] += round(record.former_answers + record.counted_answers)
    for model, count in counts.items():
        answers.add_metric([model], count)
    return answers


def _log_idle(instance: InstanceId, interval: Interval) -> None:
    if interval.plan:
        log.info(
            "%s: idle for %.1f s while %s waited: %s",
            instance,
            interval.lasts_ns / 1e9,
            ", ".join(interval.activity.waiting),
            interval.plan,
        )


def _needed(turn: Turn, audit: Audit) -> Mapping[str, int]:
    """Return the live instances of a turn and the missing ones of its audit, where some are missing."""
    missing = Count[str]()
    for each in audit.scale_up:
        missing[accelerator_of(each.kind)] += each.count
    return {kind: turn.live[kind] + count for kind, count in missing.items()}


def _recommended(turn: Turn, needed: Mapping[str, int]) -> Mapping[str, int]:
    """Return the instances to have: those that have joined since an audit were among the missing ones."""
    live = turn.live
    kinds = {*map(accelerator_of, turn.decision.problem.kinds), *live, *needed}
    return {kind: max(live[kind], needed.get(kind, 0)) for kind in sorted(kinds)}


def _pool(turn: Turn | None, accelerators: Iterable[str]) -> Iterator[Metric]:
    live = GaugeMetricFamily(
        "qlm_controller_live_instances", "Instances whose agents are alive", labels=("accelerator",)
    )
    saturation = GaugeMetricFamily(
        "qlm_controller_pool_saturation_ratio",
        "Of the instances with an engine awake, the mean share of the batch or of the KV cache in use, "
        "whichever is larger",
        labels=("accelerator",),
    )
    leases = GaugeMetricFamily(
        "qlm_controller_leases", "Requests that an instance holds the lease of", labels=(INSTANCE_LABEL,)
    )
    if turn is not None:
        by_kind: dict[str, list[InstanceStatus]] = {kind: [] for kind in accelerators}
        for status in turn.view.instances:
            by_kind.setdefault(status.accelerator, []).append(status)
        for kind, statuses in by_kind.items():
            live.add_metric([kind], len(statuses))
            if used := [share for each in statuses if (share := _used(each)) is not None]:
                saturation.add_metric([kind], sum(used) / len(used))
        for instance in turn.view.instances:
            leases.add_metric([instance.id], turn.view.leased.get(instance.id, 0))
    yield from (live, saturation, leases)


def _used(status: InstanceStatus) -> float | None:
    """Return the share of an instance's batch or KV cache in use; None while no engine is awake."""
    batch, kv = status.batch_usage, status.kv_usage
    return None if batch is None or kv is None else max(batch, kv)
