"""Requests that a gateway worker watches: once it has ended, it watches none of them."""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from qlm.domain.errors import QlmError
from qlm.domain.ids import GatewayId, RequestId
from qlm.domain.output import OutputSlice
from qlm.domain.ports.store import Store
from qlm.domain.request import RequestMetadata
from qlm.domain.view import Enqueued


class WatchedRequests:
    """Unfinished requests that a worker watches, as far as its calls and its feed show."""

    def __init__(self) -> None:
        self._watchers: dict[RequestId, set[GatewayId]] = {}

    def note_call(self, name: str, arguments: Sequence[Any], answer: Any) -> None:
        """Note a call on the state that has been answered."""
        match name, arguments, answer:
            case "enqueue", (RequestMetadata() as metadata, str(watcher), *_), Enqueued(record=record):
                if record.outcome is None:
                    self._add(metadata.id, GatewayId(watcher))
            case "watch", (RequestMetadata() as metadata, str(watcher)), _:
                self._add(metadata.id, GatewayId(watcher))
            case "unwatch", (str(id), str(watcher)), _:
                self._discard(RequestId(id), GatewayId(watcher))
            case "read_output", (str(id), *_), None:  # the state does not have it, nor watchers of it
                self._watchers.pop(RequestId(id), None)
            case "read_output", _, OutputSlice() as read if read.outcome is not None:
                self._watchers.pop(read.id, None)

    def note_outputs(self, watcher: GatewayId, slices: Iterable[OutputSlice]) -> None:
        """Note output that was announced: a request that has ended has no watchers."""
        for each in slices:
            if each.outcome is not None:
                self._discard(each.id, watcher)

    async def unwatch_all(self, store: Store) -> None:
        """Remove the worker from the watchers of all: the last client that leaves cancels a request."""
        while self._watchers:
            id, watchers = self._watchers.popitem()
            for watcher in watchers:
                with contextlib.suppress(QlmError):
                    await store.unwatch(id, watcher)

    def _add(self, id: RequestId, watcher: GatewayId) -> None:
        self._watchers.setdefault(id, set()).add(watcher)

    def _discard(self, id: RequestId, watcher: GatewayId) -> None:
        watchers = self._watchers.get(id, set())
        watchers.discard(watcher)
        if not watchers:
            self._watchers.pop(id, None)
