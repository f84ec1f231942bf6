"""What an agent keeps up from event to event, counted again from the requests that it holds."""

from qlm.agents.core.agent import Agent
from qlm.agents.core.request import GENERATING, PREEMPTIONS_MAX, Disposition, Phase, TrackedRequest, pace_of
from qlm.agents.core.request_table import RunningIndex
from qlm.domain.fleet import EngineCapacity
from qlm.domain.sampling import Evictability


def check_counts(agent: Agent, capacity: EngineCapacity, now_ns: int) -> None:
    """Compare sets, sums and remembered answers with a recount; `capacity` is that of every engine here."""
    everything = list(agent.state.requests.all.values())
    _check_phases(agent, everything)
    generating = [tracked for tracked in everything if tracked.phase in GENERATING]
    kv = agent.state.requests.kv
    assert kv.running == len(generating)
    assert kv.of_tasks == sum(each.request.extensions.task_id is not None for each in generating)
    # The pace of a request that became a late one meanwhile still counts.
    assert sum(kv.paces.values()) >= sum(pace_of(each.request) > 0 for each in generating)
    assert generating or not kv.paces
    assert kv.tokens == sum(tracked.tokens for tracked in generating)
    prefill = agent.state.requests.prefill
    backlog = [each for each in everything if prefill.holds(each)]
    assert all(each.phase in GENERATING and len(each.output) == each.resumed_at for each in backlog)
    assert bool(prefill.work_ns) == bool(backlog)
    assert {call: tracked.request.id for call, tracked in agent.state.requests.calls.items()} == {
        tracked.generation.call_id: tracked.request.id for tracked in generating
    }
    if agent.state.engines.capacity is not None:
        blocks = [capacity.blocks(tracked.tokens) for tracked in generating]
        assert [tracked.blocks for tracked in generating] == blocks
        assert kv.blocks == sum(blocks)
        usable = int(capacity.kv_blocks * 0.99)
        assert kv.free_blocks == max(0, usable - sum(blocks) - len(blocks))
        assert kv.seqs_max == capacity.seqs_max >= kv.best_effort_limit
    _check_output(agent, everything)
    _check_running_index(agent, now_ns)


def _check_phases(agent: Agent, everything: list[TrackedRequest]) -> None:
    requests = agent.state.requests
    for phase, known in (
        (Phase.LEASING, requests.leasing),
        (Phase.RUNNING, requests.running),
        (Phase.ABORTING, requests.aborting),
        (Phase.CLOSING, requests.closing),
    ):
        assert known == {tracked.request.id: tracked for tracked in everything if tracked.phase is phase}
    ready = [tracked for tracked in everything if tracked.phase is Phase.READY]
    assert requests.ready == len(ready)
    assert requests.new == len(requests.leasing) + sum(not tracked.generation.preempted for tracked in ready)
    for model in agent.state.engines.models:
        mine = [tracked for tracked in ready if tracked.request.model == model]
        assert list(requests.ready_for(model)) == sorted(mine, key=lambda tracked: tracked.urgency)
        assert {h.request.id for h in requests.ready_except(model)} == {
            tracked.request.id for tracked in ready if tracked not in mine
        }


def _check_output(agent: Agent, everything: list[TrackedRequest]) -> None:
    def closing(tracked: TrackedRequest) -> bool:
        return tracked.phase is Phase.CLOSING

    def end_due(tracked: TrackedRequest) -> bool:
        ended = tracked.exit.disposition is Disposition.END
        return closing(tracked) and ended and not tracked.exit.sent

    def pending(tracked: TrackedRequest) -> bool:
        unrecorded = closing(tracked) and tracked.generation.unrecorded
        unsent = len(tracked.output) > tracked.sent or unrecorded
        blocked = closing(tracked) and tracked.claim.writing
        return tracked.claim.epoch is not None and not blocked and (unsent or end_due(tracked))

    def urgent(tracked: TrackedRequest) -> bool:
        return tracked.sent == 0 or closing(tracked)

    def quiet(tracked: TrackedRequest) -> bool:
        """Return True for one whose lease may be about to be checked, by a write of nothing."""
        claim, all_sent = tracked.claim, tracked.sent == len(tracked.output)
        return claim.epoch is not None and not claim.writing and all_sent and not closing(tracked)

    output = agent.state.requests.output
    assert not output.touched
    checked = {tracked.request.id: tracked for tracked in everything if quiet(tracked)}
    said = {tracked.request.id: tracked for tracked in everything if pending(tracked)}
    ends = {id for id, tracked in said.items() if end_due(tracked)}
    assert output.ends.keys() == ends
    for queue, wanted in ((output.urgent, True), (output.waiting, False)):
        least = {id for id, tracked in said.items() if urgent(tracked) == wanted} - ends
        most = least | {id for id, tracked in checked.items() if urgent(tracked) == wanted}
        assert least <= queue.keys() <= most


def _check_running_index(agent: Agent, now_ns: int) -> None:
    running = list(agent.state.requests.running.values())
    able = [
        tracked
        for tracked in running
        if tracked.request.evictability is not Evictability.PINNED
        and tracked.generation.preemptions < PREEMPTIONS_MAX
    ]
    heads = [(0, float(now_ns), 0), *(tracked.urgency for tracked in agent.state.requests.all.values())]
    for head in heads:
        assert agent.state.requests.running_index.any_less_urgent(head) == any(
            tracked.urgency[:2] > head[:2] for tracked in able
        )
    if not running:
        return
    recounted = RunningIndex(agent.state.requests.running)
    pace = agent.state.stats.pace_of(agent.state.engines.active)
    for ahead_s in (-1.0, 0.3, 1.0, 1.5, 2.5):
        deadline_ns = now_ns + round(ahead_s * 1e9)
        says_ns = agent.state.requests.running_index.preempt_at_ns(deadline_ns, pace, now_ns)
        truth_ns = recounted.preempt_at_ns(deadline_ns, pace, now_ns)
        assert (says_ns <= now_ns) == (truth_ns <= now_ns)
        assert says_ns <= truth_ns
