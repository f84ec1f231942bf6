"""Reference answers: the chain of tokens that follows from each prompt."""

from collections.abc import Iterable
from dataclasses import dataclass

from qlm.domain.byte_tokens import EOS_ID
from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.outcome import Outcome
from qlm.domain.request import Request
from simulation.engine import chain_after, ends
from simulation.history import Event, Published


@dataclass(frozen=True, slots=True)
class Reference:
    """Expected answer of a request."""

    token_ids: TokenIds
    outcome: Outcome

    def text(self, tokens: int) -> str:
        """Return the text of the first tokens."""
        return bytes(each for each in self.token_ids[:tokens] if each != EOS_ID).decode()


def references(events: Iterable[Event]) -> dict[RequestId, Reference]:
    """Compute the answers to all requests that reached the broker."""
    requests = {event.request.id: event.request for event in events if isinstance(event, Published)}
    return {id: reference(request) for id, request in requests.items()}


def reference(request: Request) -> Reference:
    """Compute the answer to a request without faults."""
    sampling, chain = request.sampling, chain_after(request.prompt_ids)
    token_ids: list[int] = []
    while len(token_ids) < sampling.max_tokens:
        token_ids.append(chain.next_id())
        if ends(sampling, token_ids[-1]):
            return Reference(tuple(token_ids), Outcome.STOP)
    return Reference(tuple(token_ids), Outcome.LENGTH)
