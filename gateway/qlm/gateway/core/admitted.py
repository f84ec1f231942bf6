"""Requests accepted at a gateway that the latest observation of the cluster does not have yet."""

from collections import deque
from dataclasses import replace

from qlm.domain.group import RequestClass
from qlm.domain.ids import RequestId
from qlm.domain.request import RequestMetadata
from qlm.gateway.core.admission import Load


class Admitted:
    """Requests on their way to the queue, and those that reached it since the latest look at it began."""

    def __init__(self) -> None:
        self._pending: dict[RequestId, RequestMetadata] = {}
        self._queued: deque[tuple[int, RequestMetadata]] = deque()
        self._look = 0
        self._by_class: dict[RequestClass, int] = {}
        self._prompt_tokens = 0

    def reserve(self, metadata: RequestMetadata) -> None:
        """Count a request from now on; again, it changes nothing."""
        if metadata.id not in self._pending:
            self._pending[metadata.id] = metadata
            self._count(metadata, 1)

    def settle(self, id: RequestId, *, queued: bool) -> None:
        """Note whether a counted request was queued; one that was not no longer counts."""
        if (metadata := self._pending.pop(id, None)) is None:
            return
        if queued:
            self._queued.append((self._look, metadata))
        else:
            self._count(metadata, -1)

    def begin_look(self) -> None:
        """Note that a look at the queue begins: it sees what is queued already."""
        self._look += 1

    def end_look(self) -> None:
        """Forget what the look that began last has seen."""
        while self._queued and self._queued[0][0] < self._look:
            self._count(self._queued.popleft()[1], -1)

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
