"""What becomes of requests whose engine broke off under them.

Works on the state of `agents.protocol.AgentProtocol`.
"""

from typing import TYPE_CHECKING, Final

from qlm.agents.held import Held, Phase, Then
from qlm.domain.actions import Abort, Action
from qlm.domain.ids import ModelId
from qlm.domain.outcome import Outcome
from qlm.domain.sampling import Evictability

if TYPE_CHECKING:
    from qlm.agents.protocol import AgentProtocol

LEASES_MAX: Final = 8
"""A request whose engine died under it once it has been leased this often is taken for the cause."""


def lost(held: Held, detail: str) -> None:
    """Settle what becomes of a request whose generation broke off, unless that is settled already."""
    if held.ended:
        return
    shown = bool(held.output)
    if held.request.evictability is Evictability.PINNED and shown:
        held.then, held.outcome, held.why = Then.END, Outcome.ENGINE_LOST, detail
    elif held.epoch is not None and held.epoch.n >= LEASES_MAX:
        why = f"leased {held.epoch.n} times, and now: {detail}"
        held.then, held.outcome, held.why = Then.END, Outcome.FAILED, why
    else:
        held.then, held.why = Then.RETURN, f"engine lost: {detail}"


def give_up_calls(agent: "AgentProtocol", model: ModelId, why: str) -> list[Action]:
    """Take generations of a failed engine for lost: one that hangs never ends their streams."""
    given_up = []
    for held in agent.held.values():
        if held.request.model != model or agent.calls.pop(held.call_id, None) is None:
            continue
        given_up.append(held.call_id)
        running = held.phase is Phase.RUNNING
        agent.hands.move(held, Phase.CLOSING)
        if running or held.then is None:
            lost(held, why)
        agent.unwritten.touch(held)
    return [Abort(call_ids=tuple(given_up))] if given_up else []
