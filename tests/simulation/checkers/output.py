"""Output: each log grows by the right tokens without gap or overlap, and clients receive exactly the log."""

from collections.abc import Iterable, Iterator, Sequence

import orjson

from qlm.domain.ids import RequestId, TokenIds
from qlm.domain.output import AppendResult
from simulation.checkers.reference import Reference
from simulation.history import (
    Accepted,
    Answered,
    Appended,
    Ended,
    Event,
    Flushed,
    KeyLost,
    Published,
    Restored,
    TextReceived,
)
from simulation.workload import ClientScript

References = dict[RequestId, Reference]


def logs_are_right(events: Iterable[Event], references: References) -> Iterator[str]:
    """Check that each entry begins at the log's end, and that all tokens follow from the prompt."""
    logs: dict[RequestId, int] = {}
    for event in events:
        match event:
            case Flushed():
                logs.clear()
            case KeyLost(kind="request" | "log", of=of):
                logs.pop(RequestId(of), None)
            case Restored(id=id, token_ids=token_ids):
                yield from _right(event.at_s, id, 0, token_ids, references)
                logs[id] = max(logs.get(id, 0), len(token_ids))
            case Appended(id=id, result=AppendResult.TAKEN, offset=offset, token_ids=token_ids):
                if offset != (length := logs.get(id, 0)):
                    yield f"{_at(event)}the log of {id} has {length} tokens, its next begins at {offset}"
                yield from _right(event.at_s, id, offset, token_ids, references)
                logs[id] = offset + len(token_ids)
            case Ended(id=id, outcome=outcome) if outcome.ok:
                whole = references[id]
                if (outcome, logs.get(id, 0)) != (whole.outcome, len(whole.token_ids)):
                    yield (
                        f"{_at(event)}{id} ended ({outcome}) with {logs.get(id, 0)} tokens; "
                        f"expected {whole.outcome} with {len(whole.token_ids)}"
                    )


def clients_see_the_log(events: Sequence[Event], references: References) -> Iterator[str]:
    """Check that a client's text is, at each event, the text of the tokens up to its offset."""
    ids = {event.client: event.id for event in events if isinstance(event, Accepted)}
    shown: dict[int, str] = {}
    offsets: dict[int, int] = {}
    for event in events:
        if isinstance(event, TextReceived):
            whole = references[ids[event.client]]
            shown[event.client] = shown.get(event.client, "") + event.text
            if event.offset < offsets.get(event.client, 0):
                yield f"{_at(event)}client {event.client} received token {event.offset} again"
            offsets[event.client] = event.offset
            if shown[event.client] != whole.text(event.offset):
                yield f"{_at(event)}client {event.client} at token {event.offset} has {shown[event.client]!r}"
        elif isinstance(event, Answered) and event.end in ("stop", "length"):
            whole = references[event.id]
            if (event.text, event.end) != (whole.text(len(whole.token_ids)), whole.outcome.value):
                yield (
                    f"{_at(event)}client {event.client} was answered {event.text!r} ({event.end}); "
                    f"expected {whole.text(len(whole.token_ids))!r} ({whole.outcome})"
                )


def clients_get_their_own(events: Sequence[Event], scripts: Sequence[ClientScript]) -> Iterator[str]:
    """Check that each client was given the id of a request with its own prompt."""
    requests = {event.request.id: event.request for event in events if isinstance(event, Published)}
    for event in events:
        if isinstance(event, Accepted) and event.id in requests:
            prompt = bytes(requests[event.id].prompt_ids).decode()
            wanted = orjson.loads(scripts[event.client].body)["prompt"]
            if prompt != wanted:
                yield f"{_at(event)}client {event.client} sent {wanted!r}, and {event.id} has {prompt!r}"


def _right(
    at_s: float, id: RequestId, offset: int, token_ids: TokenIds, references: References
) -> Iterator[str]:
    right = references[id].token_ids[offset : offset + len(token_ids)]
    if token_ids != right:
        yield f"at {at_s:.3f} s: the log of {id} got {token_ids} at {offset}; expected {right}"


def _at(event: Event) -> str:
    return f"at {event.at_s:.3f} s: "
