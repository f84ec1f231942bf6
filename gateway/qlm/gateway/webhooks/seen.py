"""Ends as clients see them, who see what the gateway makes of an answer."""

from dataclasses import replace

from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.ports.outbox import EndEvent
from qlm.gateway.api.errors import ApiError
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.lookup import final_answer


async def as_seen(gateway: Gateway, event: EndEvent) -> EndEvent:
    """Return an event whose end is that of the answer that clients are shown.

    An answer that was generated to its limit may have met a stop string before: then it ended there.

    Raises:
        QlmError: The store is unavailable.
    """
    if event.ended_as != Outcome.LENGTH.value:
        return event
    record = await gateway.store.record(RequestId(event.subject))
    if record is None or not record.metadata.answer.stop:
        return event
    try:
        final = await final_answer(gateway, record)
    except ApiError:  # its output is gone, or this gateway does not serve its model
        return event
    return replace(event, ended_as=Outcome.STOP.value) if final.finish_reason == "stop" else event
