"""Start of a generation: a READY request is submitted to the engine."""

from qlm.agents.core.costs.kv_offload import kept_in_host
from qlm.agents.core.lifecycle import Cause, advance
from qlm.agents.core.output.replay import UNSEEDED
from qlm.agents.core.queue_head import SloStart
from qlm.agents.core.request import TrackedRequest
from qlm.agents.core.scheduling.prefill_limit import computed_tokens
from qlm.agents.core.state import AgentState
from qlm.agents.core.stats.activity import computing_again_ns
from qlm.domain.actions import Action, ReportResumed, Submit


def start(state: AgentState, tracked: TrackedRequest, now_ns: int) -> list[Action]:
    """Start or resume a READY request."""
    requests, work, generation = state.requests, state.stats.work, tracked.generation
    resumed, actions = generation.preempted, list[Action]()
    generation.swapped_in = resumed and kept_in_host(state.costs.kv, work, tracked)
    advance(requests, tracked, Cause.STARTED)
    seeds = state.accelerator.lower() not in UNSEEDED
    call = tracked.next_call(for_policy=state.settings.engines_host_policy, seeds=seeds)
    requests.calls[call.call_id] = tracked
    if tracked.output and tracked.pinned:
        requests.replays[call.call_id] = 0
    if not generation.swapped_in:
        requests.prefill.submitted(tracked, computed_tokens(state, tracked))
    generation.started_ns, tracked.resumed_at = now_ns, len(tracked.output)
    requests.running_index.started(tracked)
    if not tracked.best_effort:
        request = tracked.request
        state.queue.last_slo_start = SloStart(now_ns, request.cls.priority, request.model)
    work.started(tracked, tracked.tokens)
    state.stats.gpu_time.repeats(computing_again_ns(state, tracked), now_ns)
    if resumed and tracked.claim.epoch is not None:
        actions.append(ReportResumed(id=tracked.id, epoch=tracked.claim.epoch))
    actions.append(Submit(id=tracked.id, call=call))
    return actions


def too_large(state: AgentState, tracked: TrackedRequest) -> list[Action]:
    """End a READY request that needs more than the whole KV cache."""
    assert state.engines.capacity is not None
    kv_tokens = state.engines.capacity.kv_tokens
    why = f"it needs a KV cache of {tracked.tokens} tokens; this engine has {kv_tokens}"
    return advance(state.requests, tracked, Cause.TOO_LARGE, why=why)
