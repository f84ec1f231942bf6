"""Events as OpenAI writes them, of ends that the outbox keeps."""

import hashlib
from typing import Final

import orjson

from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.ports.outbox import EndEvent
from qlm.gateway.api.responses_api.objects import response_id
from qlm.gateway.files.records import BATCH_PREFIX

EVENT_PREFIX: Final = "evt_"
_ID_BYTES: Final = 16
_RESPONSE: Final = {
    Outcome.STOP.value: "completed",
    Outcome.LENGTH.value: "incomplete",
    Outcome.CANCELLED.value: "cancelled",
}


def event_type(event: EndEvent) -> str:
    """Return the type of an event, such as `response.completed`."""
    if _is_batch(event):
        return f"batch.{event.ended_as}"
    return f"response.{_RESPONSE.get(event.ended_as, 'failed')}"


def event_id(event: EndEvent) -> str:
    """Return the id of an event, the same in every attempt and for every receiver."""
    end = f"{event.subject} {event.at_ns}".encode()
    return EVENT_PREFIX + hashlib.blake2b(end, digest_size=_ID_BYTES).hexdigest()


def event_body(event: EndEvent) -> bytes:
    """Return the body of an event: it names the response or batch, and has nothing of its content."""
    id = event.subject if _is_batch(event) else response_id(RequestId(event.subject))
    return orjson.dumps(
        {
            "id": event_id(event),
            "object": "event",
            "created_at": event.at_ns // 10**9,
            "type": event_type(event),
            "data": {"id": id},
        }
    )


def _is_batch(event: EndEvent) -> bool:
    return event.subject.startswith(BATCH_PREFIX)
