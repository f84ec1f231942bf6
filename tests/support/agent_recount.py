"""What an agent keeps up from event to event, counted again from the requests that it holds."""

from qlm.agents.eviction import EVICTIONS_MAX, Candidates
from qlm.agents.held import GENERATING, Held, Phase, Then
from qlm.agents.protocol import AgentProtocol
from qlm.domain.fleet import EngineCapacity
from qlm.domain.sampling import Evictability


def check_counts(agent: AgentProtocol, capacity: EngineCapacity, now_ns: int) -> None:
    """Compare sets, sums and remembered answers with a recount; `capacity` is that of every engine here."""
    everything = list(agent.held.values())
    _check_phases(agent, everything)
    generating = [held for held in everything if held.phase in GENERATING]
    kv = agent.hands.kv
    assert kv.running == len(generating)
    assert kv.tokens == sum(held.tokens for held in generating)
    assert {call: held.request.id for call, held in agent.calls.items()} == {
        held.call_id: held.request.id for held in generating
    }
    if agent.capacity is not None:
        blocks = [capacity.blocks(held.tokens) for held in generating]
        assert [held.blocks for held in generating] == blocks
        assert kv.blocks == sum(blocks)
        usable = int(capacity.kv_blocks * 0.99)
        assert kv.free_blocks == max(0, usable - sum(blocks) - len(blocks))
        assert kv.seqs_max == capacity.seqs_max >= kv.lax_limit
    _check_unwritten(agent, everything)
    _check_candidates(agent, now_ns)


def _check_phases(agent: AgentProtocol, everything: list[Held]) -> None:
    hands = agent.hands
    for phase, known in (
        (Phase.LEASING, hands.leasing),
        (Phase.RUNNING, hands.running),
        (Phase.ABORTING, hands.aborting),
        (Phase.CLOSING, hands.closing),
    ):
        assert known == {held.request.id: held for held in everything if held.phase is phase}
    staged = [held for held in everything if held.phase is Phase.STAGED]
    assert hands.staged == len(staged)
    assert hands.fresh == len(hands.leasing) + sum(not held.parked for held in staged)
    for model in agent.models:
        mine = [held for held in staged if held.request.model == model]
        assert list(hands.staged_for(model)) == sorted(mine, key=lambda held: held.urgency)
        assert {h.request.id for h in hands.staged_except(model)} == {
            held.request.id for held in staged if held not in mine
        }


def _check_unwritten(agent: AgentProtocol, everything: list[Held]) -> None:
    def pending(held: Held) -> bool:
        end_due = held.phase is Phase.CLOSING and held.then is Then.END and not held.ending_sent
        return held.epoch is not None and (len(held.output) > held.sent or end_due)

    def urgent(held: Held) -> bool:
        return held.sent == 0 or held.phase is Phase.CLOSING

    assert not agent.unwritten.touched
    said = [held for held in everything if pending(held)]
    assert agent.unwritten.urgent.keys() == {held.request.id for held in said if urgent(held)}
    assert agent.unwritten.waiting.keys() == {held.request.id for held in said if not urgent(held)}


def _check_candidates(agent: AgentProtocol, now_ns: int) -> None:
    running = list(agent.hands.running.values())
    able = [
        held
        for held in running
        if held.request.evictability is not Evictability.PINNED and held.evictions < EVICTIONS_MAX
    ]
    heads = [(0, float(now_ns), 0), *(held.urgency for held in agent.held.values())]
    for head in heads:
        assert agent.candidates.any_laxer(head) == any(held.urgency[:2] > head[:2] for held in able)
    if not running:
        return
    fresh = Candidates(agent.hands.running)
    for ahead_s in (-1.0, 0.3, 1.0, 1.5, 2.5):
        deadline_ns = now_ns + round(ahead_s * 1e9)
        says_ns = agent.candidates.make_room_at_ns(deadline_ns, agent.pace, now_ns)
        truth_ns = fresh.make_room_at_ns(deadline_ns, agent.pace, now_ns)
        assert (says_ns <= now_ns) == (truth_ns <= now_ns)
        assert says_ns <= truth_ns
