"""Outbox of the embedded store, in memory and as entries `outbox/<subject>` of its journal."""

import logging
from collections.abc import Mapping
from typing import Final

from qlm.domain.errors import UndecodableDataError
from qlm.domain.formats.end_events import decode_end_event, encode_end_event
from qlm.domain.ports.outbox import EndEvent
from qlm.store.core import outbox
from qlm.store.core.state import State

log = logging.getLogger("qlm.store")

_PREFIX: Final = "outbox/"


def outbox_changes(events: Mapping[str, EndEvent | None]) -> dict[str, bytes | None]:
    """Return the changes of the journal with which events are kept; None removes one."""
    return {
        f"{_PREFIX}{subject}": None if event is None else encode_end_event(event)
        for subject, event in events.items()
    }


def restore_outbox(state: State, entries: Mapping[str, bytes]) -> None:
    """Restore the events of a journal; one that cannot be read is left out, and logged."""
    for name, data in entries.items():
        if not name.startswith(_PREFIX):
            continue
        try:
            outbox.restore(state, decode_end_event(data))
        except UndecodableDataError as error:
            log.warning("the event of %s is not sent: %s", name.removeprefix(_PREFIX), error)
