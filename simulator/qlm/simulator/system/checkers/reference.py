"""The one right answer to each request: the chain of tokens that follows from its prompt."""

from collections.abc import Iterable
from dataclasses import dataclass

from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.request import Request
from qlm.simulator.system.engine import chain_after, ends
from qlm.simulator.system.history import Event, Published


@dataclass(frozen=True, slots=True)
class Reference:
    """An answer as it must be: its tokens and how it ends."""

    token_ids: TokenIds
    outcome: Outcome

    def text(self, tokens: int) -> str:
        """Text of the first tokens."""
        return bytes(each for each in self.token_ids[:tokens] if each != EOS_ID).decode()


def references(events: Iterable[Event]) -> dict[RequestId, Reference]:
    """Answers to all requests that ever reached the global queue."""
    requests = {event.request.id: event.request for event in events if isinstance(event, Published)}
    return {id: reference(request) for id, request in requests.items()}


def reference(request: Request) -> Reference:
    """Answer a request without any fault, eviction, or resume."""
    sampling, chain = request.sampling, chain_after(request.prompt_ids)
    token_ids: list[int] = []
    while len(token_ids) < sampling.max_tokens:
        token_ids.append(chain.next_id())
        if ends(sampling, token_ids[-1]):
            return Reference(tuple(token_ids), Outcome.STOP)
    return Reference(tuple(token_ids), Outcome.LENGTH)
