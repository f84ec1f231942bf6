"""State of the agent. Its parts keep their own invariants; decisions are made by the rules that take them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.policies.registry import FCFS
from qlm.agents.core.costs.host_memory import ASLEEP_IN
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.queue_head import QueueHead
from qlm.agents.core.request_table import RequestTable
from qlm.agents.core.scheduling.hosting.host import BatchHost
from qlm.agents.core.scheduling.visits.state import VisitState
from qlm.agents.core.stats.agent_stats import AgentStats
from qlm.agents.core.stats.gpu_time import GpuTime
from qlm.agents.core.stats.progress import WatchSettings
from qlm.agents.core.timers import Alarm
from qlm.domain.fleet import EngineCapacity, EngineState
from qlm.domain.ids import GroupId, ModelId
from qlm.domain.lease import Holder
from qlm.rct_estimator.host_memory import HostMemoryUse, SwapCost


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of an agent; those with a configuration key are set in `cli.runtime.wiring`.

    Attributes:
        append_interval_s: Shortest time between two writes of tokens in the middle of answers.
        append_at_once_max: With at most so many running requests, such tokens are written at once.
        ends_apart: Write outcomes apart from tokens, so that neither waits for the other; otherwise there is
            one write at a time.
        delivery_renewal_s: Age at which the delivery of a message is renewed; under half the broker's
            acknowledgement timeout (30 minutes by default).
        lease_check_s: Time between checks of the leases of requests that write nothing; well below the time
            for which the controller lets a message be missing (`controller.shell.missing_messages`).
        pull_max: Most requests of one pull.
        swap_after_s: Time for which a group of another model must have been first before the model is
            swapped. It is longer than a re-plan, so that a new plan can still keep the present model.
        swap_idle_s: Shortest time since the last start of SLO-bound work before the model is swapped for
            deferrable work; two swaps if those take longer (`queue_head.SwapHysteresis`). 0 for no wait.
        retry_s: Pause before the store is tried again.
        visits: Leave a model at the latest safe moment (`scheduling.visits`), not when a group of another one
            is first in the virtual queue.
        patience_s: With visits, time after which batch work counts like an objective of `late_weight`; for
            late work the larger of half of it and three objectives.
        late_weight: Worth of a late or batch request each time its patience runs out, in missed objectives.
        preempts: Preempt running requests for more urgent ones.
        demotes: Demote requests that would miss their deadline, in favour of others (`scheduling.demotion`).
        limits_concurrency: Limit best-effort concurrency by the pace that others need (`concurrency_limit`).
        bounds_readers: Take no more requests beside a reader than the batch keeps up with (`reader_limit`).
        prefetches: Prefetch weights of models later in the virtual queue (`scheduling.prefetch`).
        watch: The watchdog of engines (`watchdog`).
        batching: Batch policy of the engines (`qlm.agents.batching`).
        aborts: The agent hosts that policy, and aborts whom it preempts; else the engines host it.
    """

    append_interval_s: float = 0.003
    append_at_once_max: int = 24
    ends_apart: bool = True
    delivery_renewal_s: float = 600.0
    lease_check_s: float = 5.0
    pull_max: int = 16
    swap_after_s: float = 0.1
    swap_idle_s: float = 4.0
    retry_s: float = 0.2
    visits: bool = False
    patience_s: float = 120.0
    late_weight: float = 0.2
    preempts: bool = True
    demotes: bool = True
    limits_concurrency: bool = False
    bounds_readers: bool = True
    prefetches: bool = True
    watch: WatchSettings = field(default_factory=WatchSettings)
    batching: str = FCFS
    aborts: bool = False

    @property
    def hosts_policy(self) -> bool:
        """The agent itself hosts a batch policy (`scheduling.hosting`)."""
        return self.aborts and self.batching != FCFS

    @property
    def engines_host_policy(self) -> bool:
        """The engines host a batch policy, and get the objective of each request."""
        return not self.aborts and self.batching != FCFS

    @property
    def demotes_decided(self) -> bool:
        """Demote requests that are evicted for a swap once their objective is decided; not with visits."""
        return self.demotes and not self.visits

    @property
    def retry_ns(self) -> int:
        """`retry_s` in nanoseconds."""
        return round(self.retry_s * 1e9)


class Engines:
    """The engines of the instance, one per model, at most one awake.

    Attributes:
        models: The models the instance may serve.
        states: State of each engine; those that sleep, least recently used first.
        active: The model of the awake engine.
        served: An engine has been awake in this session.
        capacity: Of the awake engine.
        swapping_to: The model of the swap in progress.
        errors: Last error of each engine that has not been awake since.
        failed_until_ns: End of the pause after each failure.
        failures: Failures of each engine since it was awake.
        swap_ns: Duration of a swap to each model that is not awake.
        suspect: The awake engine broke off a generation and was not found healthy since.
        token_due_s: Time in which the next probe requires a token; 0 if health is enough.
        probe_after_ns: Earliest time of the next health probe; None while one is in progress.
        no_evictions_for: Group for which evictions for a swap were not worth it, and until when that holds.
    """

    def __init__(self, models: Sequence[ModelId], costs: OperationCosts) -> None:
        self.models: Final = tuple(models)
        self.states: dict[ModelId, EngineState] = dict.fromkeys(self.models, EngineState.COLD)
        self.active: ModelId | None = None
        self.capacity: EngineCapacity | None = None
        self.swapping_to: ModelId | None = None
        self.errors: dict[ModelId, str] = {}
        self.failed_until_ns: Final[dict[ModelId, int]] = {}
        self.failures: Counter[ModelId] = Counter()
        self._costs = costs
        self.swap_ns: Mapping[ModelId, int] = costs.swap_ns(self.states)
        self.served = self.suspect = False
        self.token_due_s = 0.0
        self.probe_after_ns: int | None = 0
        self.no_evictions_for: tuple[GroupId, int] | None = None

    def begin_swap(self, model: ModelId) -> None:
        """Note the start of a swap; no engine is awake until it ends."""
        self.swapping_to = model
        self.active = self.capacity = None
        self.states[model] = EngineState.STARTING

    def changed(self, model: ModelId, state: EngineState) -> bool:
        """Note a new state of an engine; True if that ends the swap in progress."""
        if state.sleeps:
            del self.states[model]  # it comes last: the states of sleeping engines are in order of use
        self.states[model] = state
        self.swap_ns = self._costs.swap_ns(self.states)
        if state is not EngineState.AWAKE and model == self.active:
            self.active, self.capacity = None, None
            self._trust()
        swapped = model == self.swapping_to and state in (EngineState.AWAKE, EngineState.FAILED)
        if swapped:
            self.swapping_to = None
        return swapped

    def woke(self, model: ModelId, capacity: EngineCapacity | None) -> None:
        """Make an engine the awake one."""
        self.active, self.capacity, self.served = model, capacity, True
        self._trust()
        self.errors.pop(model, None)
        self.failed_until_ns.pop(model, None)
        self.failures.pop(model, None)

    def failed(self, model: ModelId, error: str, until_ns: int) -> None:
        """Count the failure, keep the first line of its error, and pause before the next start."""
        self.failures[model] += 1
        self.errors[model] = error.partition("\n")[0]
        self.failed_until_ns[model] = until_ns

    def end_pauses(self, now_ns: int) -> None:
        """Count engines whose pause is over as cold again, since plans leave out failed ones."""
        for model, until_ns in self.failed_until_ns.items():
            if until_ns <= now_ns and self.states[model] is EngineState.FAILED:
                self.states[model] = EngineState.COLD

    def distrust(self, token_s: float, why: str) -> None:
        """Suspect the awake engine until it has generated a token for a new request within `token_s`."""
        assert self.active is not None
        self.suspect, self.token_due_s = True, token_s
        self.errors[self.active] = why

    def probed(self, *, healthy: bool, by_token: bool, next_after_ns: int) -> None:
        """Note the answer of a probe."""
        if healthy and (by_token or not self.token_due_s):
            self._trust()
        self.probe_after_ns = next_after_ns

    def _trust(self) -> None:
        if self.token_due_s and self.active is not None:
            self.errors.pop(self.active, None)
        self.suspect, self.token_due_s = False, 0.0

    @property
    def reported(self) -> tuple[tuple[ModelId, EngineState], ...]:
        """The states for the heartbeat: an engine that has to prove itself counts as failed meanwhile."""
        failed = self.active if self.token_due_s else None
        return tuple((each, EngineState.FAILED if each == failed else at) for each, at in self.states.items())

    def host_memory(self, prefetched: Sequence[ModelId], costs: Mapping[ModelId, SwapCost]) -> HostMemoryUse:
        """Return the use of host memory by sleeping engines and prefetched weights, where sizes are known."""
        tiers = ((model, ASLEEP_IN.get(state)) for model, state in self.states.items() if model in costs)
        return HostMemoryUse(
            asleep={model: tier for model, tier in tiers if tier is not None},
            prefetched=tuple(model for model in prefetched if model in costs),
        )


class PrefetchState:
    """Weights files in host memory for models not awake.

    Attributes:
        models: Models whose files are in host memory, oldest first.
        in_progress: The model whose files are being loaded or dropped.
        stale: Something has changed since the last decision.
    """

    def __init__(self) -> None:
        self.models: tuple[ModelId, ...] = ()
        self.in_progress: ModelId | None = None
        self.stale = False
        self._refused: set[ModelId] = set()

    def reported(self, models: tuple[ModelId, ...]) -> None:
        """Note which files are in host memory."""
        self.models = models

    def finished(self, model: ModelId, *, refused: bool) -> None:
        """Note the end of a load or drop; a refused model is not tried again until memory has changed."""
        if refused:
            self._refused.add(model)
        self.in_progress = None
        self.stale = True

    def changed(self, *, memory: bool = False) -> None:
        """Decide again. If host memory changed, refused models may fit now."""
        self.stale = True
        if memory:
            self._refused.clear()

    def worth_trying(self, model: ModelId) -> bool:
        """Return True unless the files of a model are in host memory or were refused."""
        return model not in self.models and model not in self._refused


class LeaseTimes:
    """Earliest times of the next lease operations.

    Attributes:
        restore_after_ns: Next attempt to register requests that the store has lost.
        renew_after_ns: Next check for deliveries to renew.
        check_after_ns: Next check of the leases of requests that write nothing.
    """

    def __init__(self) -> None:
        self.restore_after_ns = 0
        self.renew_after_ns = 0
        self.check_after_ns = 0


class AgentState:
    """All state of one agent.

    Attributes:
        holder: The agent as a lease holder.
        accelerator: Kind of accelerator of its instance.
        settings: Operator settings.
        costs: Costs of serving operations.
        requests: Requests pulled and not yet returned or acknowledged.
        queue: The virtual queue.
        engines: Engines of the instance.
        prefetch: Weights files in host memory.
        visit: The visit to the awake model.
        hosts: Hosts of the batch policy, by model; none if engines have their own.
        lease_times: Times of lease operations.
        stats: Measurements.
        alarm: The next Tick.
        draining: The agent takes no more work.
        drained: It has reported that all of its work is gone.
    """

    def __init__(
        self,
        holder: Holder,
        accelerator: str,
        models: Sequence[ModelId],
        settings: AgentSettings,
        costs: OperationCosts,
        gpu_time: GpuTime,
        new_policy: Callable[[], BatchPolicy] | None = None,
    ) -> None:
        self.holder: Final = holder
        self.accelerator: Final = accelerator
        self.settings: Final = settings
        self.costs: Final = costs
        self.requests: Final = RequestTable()
        self.engines: Final = Engines(models, costs)
        self.queue: Final = QueueHead(holder.instance, self.engines.models, self.engines.failed_until_ns)
        self.prefetch: Final = PrefetchState()
        self.visit: Final = VisitState()
        self.hosts: Final = {model: BatchHost(new_policy()) for model in models if new_policy is not None}
        self.lease_times: Final = LeaseTimes()
        self.stats: Final = AgentStats(gpu_time, costs.profiles)
        self.alarm: Final = Alarm()
        self.draining = False
        self.drained = False
