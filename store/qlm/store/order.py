"""Requests in order of arrival, with lookups by rank."""

from collections.abc import Iterator

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from qlm.domain.ids import RequestId

ArrivalKey = tuple[int, RequestId]
"""Arrival in nanoseconds since the epoch, then the id: the order is total."""


class ArrivalOrder:
    """A sorted set of arrival keys; each operation takes a few microseconds at 100 000 keys."""

    __slots__ = ("_keys", "_left", "_mixed")

    def __init__(self) -> None:
        self._keys = SortedList()
        self._left = 0
        self._mixed = 0

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: ArrivalKey) -> None:
        """Put a key, which must not be in, at its place."""
        keys = self._keys
        if keys and key < keys[-1]:
            self._mixed += 1
        keys.add(key)

    def remove(self, key: ArrivalKey) -> None:
        """Take a key out.

        Raises:
            ValueError: It is not in.
        """
        keys = self._keys
        if keys and keys[0] == key:
            del keys[0]
            self._left += 1
        else:
            keys.remove(key)
            self._mixed += 1

    def place(self, rank: int) -> tuple[int, int]:
        """Return what names the request of a rank: equal places, equal requests, if there is one.

        Who comes last mostly arrives last, and who came first mostly leaves first: then only ranks change.
        """
        return (self._mixed, self._left + rank)

    def arrival_ns(self, rank: int) -> int | None:
        """Arrival of the request with `rank` others before it; None beyond the last."""
        if rank >= len(self._keys):
            return None
        arrival_ns: int = self._keys[rank][0]
        return arrival_ns

    def newest_first(self) -> Iterator[RequestId]:
        """Iterate over the ids, the latest arrival first."""
        return (id for _, id in reversed(self._keys))
