"""Requests accepted at a gateway that the latest look at the queue has not seen."""

from collections import OrderedDict
from dataclasses import replace

from qlm.domain.group import RequestClass
from qlm.domain.ids import RequestId
from qlm.domain.request import RequestMetadata
from qlm.gateway.core.admission import Load


class Admitted:
    """Requests on their way to the queue, and those that reached it since the latest look at it began."""

    def __init__(self) -> None:
        self._pending: dict[RequestId, RequestMetadata] = {}
        self._queued: OrderedDict[RequestId, tuple[int, RequestMetadata]] = OrderedDict()
        self._look = 0
        self._by_class: dict[RequestClass, int] = {}
        self._prompt_tokens = 0

    def reserve(self, metadata: RequestMetadata) -> None:
        """Count a request from now on; again, it changes nothing."""
        if metadata.id not in self._pending and metadata.id not in self._queued:
            self._pending[metadata.id] = metadata
            self._count(metadata, 1)

    def settle(self, id: RequestId, *, queued: bool) -> None:
        """Note whether a counted request was queued; one that was not no longer counts."""
        if (metadata := self._pending.pop(id, None)) is None:
            return
        if queued:
            self._queued[id] = (self._look, metadata)
        else:
            self._count(metadata, -1)

    def left(self, id: RequestId) -> None:
        """Forget a request that has left the queue, if it counts."""
        _, metadata = self._queued.pop(id, (0, None))
        if (metadata := metadata or self._pending.pop(id, None)) is not None:
            self._count(metadata, -1)

    def begin_look(self) -> None:
        """Note that a look at the queue begins: it sees what is queued already."""
        self._look += 1

    def end_look(self) -> None:
        """Forget what the look that began last has seen."""
        while self._queued and next(iter(self._queued.values()))[0] < self._look:
            _, (_, metadata) = self._queued.popitem(last=False)
            self._count(metadata, -1)

    def added_to(self, load: Load) -> Load:
        """Return an observation with these requests."""
        return replace(
            load,
            accepted_since=len(self._pending) + len(self._queued),
            accepted_by_class=self._by_class,
            accepted_prompt_tokens=self._prompt_tokens,
        )

    def _count(self, metadata: RequestMetadata, sign: int) -> None:
        requests = self._by_class.get(metadata.cls, 0) + sign
        if requests:
            self._by_class[metadata.cls] = requests
        else:
            del self._by_class[metadata.cls]
        self._prompt_tokens += sign * metadata.prompt_tokens
