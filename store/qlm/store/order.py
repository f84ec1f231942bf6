"""Requests in order of arrival, with lookups by rank."""

from collections.abc import Iterator

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from qlm.domain.ids import RequestId

ArrivalKey = tuple[int, RequestId]
"""Arrival in nanoseconds since the epoch, then the id: the order is total."""


class ArrivalOrder:
    """A sorted set of arrival keys; each operation takes a few microseconds at 100 000 keys."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys = SortedList()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: ArrivalKey) -> None:
        """Put a key, which must not be in, at its place."""
        self._keys.add(key)

    def remove(self, key: ArrivalKey) -> None:
        """Take a key out.

        Raises:
            ValueError: It is not in.
        """
        self._keys.remove(key)

    def arrival_ns(self, rank: int) -> int | None:
        """Arrival of the request with `rank` others before it; None beyond the last."""
        if rank >= len(self._keys):
            return None
        arrival_ns: int = self._keys[rank][0]
        return arrival_ns

    def newest_first(self) -> Iterator[RequestId]:
        """Iterate over the ids, the latest arrival first."""
        return (id for _, id in reversed(self._keys))
