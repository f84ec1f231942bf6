"""The agent of one LLM serving instance, as a sans-I/O state machine: events in, actions out.

It turns the order of the virtual queue into LLM serving operations and keeps every promise about leases, the
output log and acknowledgements. It has no clock, thread or connection: asyncio, Ray and the simulator feed it
events and carry out its actions (`agents.shell.runner`).

`state` holds what it knows, `lifecycle` the phases of a request, `scheduling` what runs next, `leases` and
`output` the exchange with broker and store. This module dispatches events to them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, assert_never

from qlm.agents.batching.decision import BatchPolicy
from qlm.agents.batching.policies.registry import POLICIES
from qlm.agents.core import leases, lifecycle, watchdog
from qlm.agents.core.costs.operation_costs import OperationCosts
from qlm.agents.core.engine_changes import engine_changed, weights_prefetched
from qlm.agents.core.events import (
    Appended,
    Decisive,
    EngineChanged,
    EngineProbed,
    Event,
    GenerationEnded,
    LeaseAnswered,
    Progress,
    Pulled,
    QueueRead,
    Tick,
    WeightsPrefetched,
)
from qlm.agents.core.output import log as output_log
from qlm.agents.core.output.replay import Repeated
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.scheduling.prefetch import prefetch
from qlm.agents.core.scheduling.prefill_limit import follow_objectives
from qlm.agents.core.scheduling.scheduler import serve
from qlm.agents.core.state import AgentSettings, AgentState
from qlm.agents.core.stats.activity import (
    WaitingModels,
    activity,
    computing_again_ns,
    generates_still,
    waiting_here,
)
from qlm.agents.core.stats.gpu_time import GpuTime
from qlm.domain.actions import Action, Drained
from qlm.domain.fleet import InstanceStatus, ServedWork
from qlm.domain.ids import ModelId
from qlm.domain.lease import Holder
from qlm.domain.notices import CancelAsked, DrainAsked, LeaseHeld

NO_COSTS: Final = OperationCosts()


class Agent:
    """One agent. Call `receive` with each event and carry out the returned actions, in order.

    Only `receive` and what it is made of change `state`; others may read it. The cost of an event hardly
    depends on the number of requests.
    """

    def __init__(
        self,
        holder: Holder,
        accelerator: str,
        models: Sequence[ModelId],
        settings: AgentSettings,
        costs: OperationCosts = NO_COSTS,
        *,
        gpu_time: GpuTime | None = None,
        waiting: WaitingModels | None = None,
        new_policy: Callable[[], BatchPolicy] | None = None,
    ) -> None:
        """Begin a session.

        Args:
            holder: The agent as a lease holder.
            accelerator: Kind of accelerator of its instance.
            models: Models that it may serve.
            settings: Operator settings.
            costs: Costs of serving operations.
            gpu_time: Account of the instance's time; None for one that begins with this session.
            waiting: Models with waiting requests anywhere; None for those that wait here. Decides nothing:
                it only splits idle time by what waits.
            new_policy: Makes the batch policy of a model where the agent hosts it; None for the plain one.
        """
        policy = (new_policy or POLICIES[settings.batching]) if settings.hosts_policy else None
        gpu_time = gpu_time or GpuTime()
        self.state: Final = AgentState(holder, accelerator, models, settings, costs, gpu_time, policy)
        self._waiting: Final = waiting or (lambda: waiting_here(self.state))
        self._first_tokens: list[TrackedRequest] = []
        self._decisive = False

    def receive(self, event: Event, now_ns: int) -> list[Action]:
        """Process one event, at `now_ns` since the epoch, and return what to do, in order."""
        return self.receive_all((event,), now_ns)

    def receive_all(self, events: Iterable[Event], now_ns: int) -> list[Action]:
        """Process simultaneous events in order, and decide once for all of them."""
        return self.take(events, now_ns) + self.decide(now_ns)

    def take(self, events: Iterable[Event], now_ns: int) -> list[Action]:
        """Process simultaneous events in order, and return what follows from each; `decide` must follow.

        Between the two may come events that these actions cause at once.
        """
        actions: list[Action] = []
        for event in events:
            if isinstance(event, Progress):
                actions += self._progress(event)
                if self.state.hosts:
                    self._show_readers(event, now_ns)
                continue
            actions += self._handle(event, now_ns)
            if not (isinstance(event, Appended) and output_log.decides_nothing(event, self.state.requests)):
                self._decisive = True
        if self._first_tokens:
            self._note_first_tokens(now_ns)
        return actions

    def decide(self, now_ns: int) -> list[Action]:
        """Decide once for all events taken since the last decision."""
        state, actions = self.state, list[Action]()
        requests, stats, times = state.requests, state.stats, state.lease_times
        if state.engines.failed_until_ns:
            state.engines.end_pauses(now_ns)
        if self._decisive:
            self._decisive = False
            # Tokens alone never free a slot; without a decision a token costs little.
            actions += serve(state, now_ns)
            if state.prefetch.stale:
                actions += prefetch(state, now_ns)
            stats.operations.seen(now_ns)
            if not generates_still(state, now_ns):
                self.account(now_ns)
        if now_ns >= times.check_after_ns:
            leases.check(requests, times, state.settings.lease_check_s, now_ns)
        actions += output_log.flush(state, now_ns)
        if requests.to_restore:
            actions += leases.restorations(requests, times, state.alarm, now_ns)
        if now_ns >= times.renew_after_ns:
            actions += leases.renewals(requests, times, state.settings.delivery_renewal_s, now_ns)
        stats.work.observe(requests.kv.in_batch, now_ns)
        if state.draining and not requests.all and not state.queue.pulling and not state.drained:
            state.drained = True
            actions.append(Drained())
        actions += state.alarm.actions()
        return actions

    def account(self, now_ns: int) -> None:
        """Account for the time of the instance up to now; decides nothing."""
        state = self.state
        state.stats.gpu_time.observe(activity(state, self._waiting, now_ns), now_ns)

    def status(self) -> InstanceStatus:
        """Return the status for the heartbeat of the instance, as of the last event."""
        state = self.state
        engines, requests = state.engines, state.requests
        return InstanceStatus(
            holder=state.holder,
            accelerator=state.accelerator,
            models=engines.models,
            active_model=engines.active,
            engines=engines.reported,
            capacity=engines.capacity,
            running=requests.kv.in_batch,
            parked=requests.ready,
            staged=requests.ready_work(),
            answers=requests.open_answers(),
            prompts=state.stats.prompts.report(),
            kv_used_tokens=requests.kv.tokens_in_batch,
            work=ServedWork() if engines.active is None else state.stats.work.work(),
            operations=state.stats.operations.stats(),
            draining=state.draining,
            error="; ".join(f"{model}: {why}" for model, why in sorted(engines.errors.items())),
        )

    def _handle(self, event: Decisive, now_ns: int) -> list[Action]:  # noqa: C901 - one flat table of events
        state = self.state  # The most frequent events come first.
        match event:
            case GenerationEnded():
                self._generation_ended(event, now_ns)
                return []
            case Appended():
                return output_log.appended(state, event, now_ns)
            case LeaseAnswered():
                return leases.lease_answered(state, event, now_ns)
            case QueueRead(queue=queue):
                # The store counts a message as pulled only once its lease is granted.
                leasing = state.requests.leasing.values()
                state.queue.read(queue, [tracked.claim.group for tracked in leasing])
                follow_objectives(state)
                state.prefetch.changed()
                return []
            case Pulled():
                return leases.pulled(state, event, now_ns)
            case Tick():
                state.alarm.clear()
                return watchdog.check(state, now_ns)
            case EngineChanged():
                return engine_changed(state, event, now_ns)
            case WeightsPrefetched():
                weights_prefetched(state, event, now_ns)
                return []
            case EngineProbed():
                return watchdog.probed(state, event, now_ns)
            case CancelAsked(id=id, outcome=outcome):
                return lifecycle.cancel(state.requests, id, outcome, "", now_ns)
            case LeaseHeld():
                return leases.lease_held(state.requests, event)
            case DrainAsked():
                state.draining = True
                return lifecycle.return_all(state.requests, "draining", now_ns)
            case _:
                assert_never(event)

    def _progress(self, event: Progress) -> list[Action]:
        # The most frequent event: the loop itself does what most chunks need.
        requests, actions = self.state.requests, list[Action]()
        if requests.replays:
            event, actions = self._repeated(event)
        calls, kv, output_log = requests.calls, requests.kv, requests.output
        output_log.lateness_ns = event.late_ns
        block_tokens = kv.block_tokens
        came = blocks = 0
        if event.logprobs or event.prompt_logprobs or event.preparing:
            self._scored(event)
        for call_id, token_ids in event.chunks:
            tracked = calls.get(call_id)
            if tracked is None:
                continue
            output = tracked.output
            before = len(output)
            if before == tracked.sent:
                output_log.grown(tracked)
            if before == tracked.resumed_at:
                self._first_tokens.append(tracked)
            output += token_ids
            tokens = len(token_ids)
            came += tokens
            spare_tokens = tracked.spare_tokens - tokens
            if spare_tokens < 0:
                taken = -(spare_tokens // block_tokens)
                spare_tokens += taken * block_tokens
                tracked.blocks += taken
                blocks += taken
            tracked.spare_tokens = spare_tokens
        kv.tokens += came
        kv.blocks += blocks
        self.state.stats.work.output_tokens += came
        return actions

    def _show_readers(self, event: Progress, now_ns: int) -> None:
        """Let the readers that a hosted policy looks at have the new tokens."""
        calls = self.state.requests.calls
        grown = [tracked for call_id, _ in event.chunks if (tracked := calls.get(call_id)) is not None]
        if grown:
            self.state.hosts[grown[0].request.model].delivered(grown, now_ns)

    def _repeated(self, event: Progress) -> tuple[Progress, list[Action]]:
        """Return what goes beyond the logs, and the aborts of replays that differ from them."""
        requests = self.state.requests
        repeated = Repeated(requests, event)
        for call_id in repeated.call_ids:
            self._prompt_computed(requests.calls[call_id])
            self.state.stats.progress.repeated(call_id)
        if not repeated.differing:
            return repeated.beyond, []
        self._decisive = True
        return repeated.beyond, lifecycle.cut(requests, repeated.differing, lifecycle.DIVERGED, diverged=True)

    def _scored(self, event: Progress) -> None:
        calls = self.state.requests.calls
        for call_id in calls.keys() & event.preparing:
            self.state.stats.progress.repeated(call_id)
        for call_id, packed in event.logprobs:
            if (tracked := calls.get(call_id)) is not None and (scores := tracked.generation.scores):
                scores.add(packed, len(tracked.output))
        for call_id, packed in event.prompt_logprobs:
            if (tracked := calls.pop(call_id, None)) is not None:
                calls[call_id] = tracked  # its answer waits behind the prompts of all others
                self.state.stats.progress.scored(call_id)
                if (scores := tracked.generation.scores) is not None:
                    scores.prompt = packed

    def _note_first_tokens(self, now_ns: int) -> None:
        stats = self.state.stats
        for tracked in self._first_tokens:
            self._prompt_computed(tracked)
            stats.progress.began(tracked.generation.call_id)
            if tracked.resumed_at and not tracked.pinned:  # a replay takes longer than a resume
                stats.operations.resumed(tracked, now_ns)
            elif tracked.request.answered_by_first_token:
                stats.lead_times.seen(tracked, now_ns)
        self._first_tokens.clear()

    def _prompt_computed(self, tracked: TrackedRequest) -> None:
        """Note a token of a request, maybe one behind its first; decide again if prompts waited for room."""
        prefill = self.state.requests.prefill
        if not prefill.holds(tracked):
            return
        prefill.over(tracked)
        if prefill.refused:
            prefill.refused = False
            self._decisive = True

    def _generation_ended(self, event: GenerationEnded, now_ns: int) -> None:
        state, stats = self.state, self.state.stats
        short = event.call_id in state.requests.replays
        tracked = state.requests.end_call(event.call_id)
        if tracked is None:
            return
        stats.work.stopped(tracked)
        if len(tracked.output) == tracked.resumed_at:
            stats.gpu_time.spared(computing_again_ns(state, tracked), now_ns)
        if event.cached_tokens is not None:
            stats.work.found(tracked, event.cached_tokens)
            stats.prompts.ended(tracked, event.cached_tokens)
            tracked.generated_from_cache(event.cached_tokens)
        if event.finish in ("stop", "length") and not short:
            elapsed_s = max(0.0, (now_ns - tracked.generation.started_ns) / 1e9)
            model, begun_at = tracked.request.model, 0 if tracked.pinned else tracked.resumed_at
            stats.paces[model] = stats.pace_of(model).seen(
                tokens=len(tracked.output) - begun_at, elapsed_s=elapsed_s, whole=not begun_at
            )
            stats.work.completed(tracked)
            stats.concurrency.ended(tracked)
            stats.readers.ended(tracked.request.model, tracked.request.prompt_tokens, len(tracked.output))
            stats.operations.ended += 1
            if not tracked.request.answered_by_first_token:
                stats.lead_times.seen(tracked, now_ns)
        elif event.finish in ("lost", "garbled"):
            watchdog.broke_off(state, event.detail)
            if event.finish == "garbled":
                stats.progress.strike("garbled", now_ns)
        elif event.finish == "declined":
            watchdog.declined(state, event.detail)
        lifecycle.generation_ended(state.requests, tracked, event, short=short)
