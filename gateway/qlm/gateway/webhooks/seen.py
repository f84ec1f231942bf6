"""Ends as clients see them, who see what the gateway makes of an answer."""

import logging
from dataclasses import replace

from qlm.domain.ids import RequestId
from qlm.domain.outcome import Outcome
from qlm.domain.ports.outbox import EndEvent
from qlm.domain.shell.faults import FaultKind, kind_of
from qlm.gateway.api.errors import ApiError
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.lookup import final_answer

_log = logging.getLogger(__name__)


async def as_seen(gateway: Gateway, event: EndEvent) -> EndEvent:
    """Return an event whose end is that of the answer that clients are shown.

    An answer that was generated to its limit may have met a stop string before: then it ended there. Where
    that cannot be found out, as with a damaged record, the event stays as it is.

    Raises:
        UnavailableError: The store is away.
    """
    if event.ended_as != Outcome.LENGTH.value:
        return event
    try:
        stopped = await _ended_at_stop(gateway, RequestId(event.subject))
    except ApiError:  # its output is gone, or this gateway does not serve its model
        return event
    except Exception as error:
        if kind_of(error) is FaultKind.UNAVAILABLE:
            raise
        gateway.faults.note(_log, error, "the end of %s is reported as it is stored", event.subject)
        return event
    return replace(event, ended_as=Outcome.STOP.value) if stopped else event


async def _ended_at_stop(gateway: Gateway, id: RequestId) -> bool:
    record = await gateway.store.record(id)
    if record is None or not record.metadata.answer.stop:
        return False
    return (await final_answer(gateway, record)).finish_reason == "stop"
