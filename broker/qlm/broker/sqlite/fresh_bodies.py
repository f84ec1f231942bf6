"""Bodies of messages that this process has just published: most are handed out before they leave memory."""

from collections.abc import Iterable
from typing import Final

BYTES_MAX: Final = 16 * 2**20
"""Bytes of all of them. The oldest messages are handed out first, so once it is full the later ones are left
to the disk."""


WHOLE_BYTES_MAX: Final = 2 * 2**20
"""Beyond that, plain bytes are kept: the request of a `RequestBody` takes several times its size."""


class FreshBodies:
    """Bodies by message, each at most until it is handed out."""

    def __init__(self) -> None:
        self._bytes = 0
        self._bodies: dict[int, bytes] = {}

    def add(self, id: int, body: bytes) -> None:
        """Keep a body if there is room."""
        if self._bytes + len(body) <= BYTES_MAX:
            self._bytes += len(body)
            self._bodies[id] = body if self._bytes <= WHOLE_BYTES_MAX else bytes(body)

    def has(self, ids: Iterable[int]) -> bool:
        """Return True if the bodies of all these messages are here."""
        return all(id in self._bodies for id in ids)

    def take(self, ids: Iterable[int]) -> dict[int, bytes]:
        """Remove and return the bodies of these messages that are here."""
        bodies = self._bodies
        taken = {id: bodies.pop(id) for id in ids if id in bodies}
        self._bytes -= sum(map(len, taken.values()))
        return taken
