"""A file whose read hangs, as one in a storage that does not answer."""

import io
from threading import Event
from typing import Any


class HangingFile(io.RawIOBase):
    """A file whose read ends when it is let go."""

    def __init__(self) -> None:
        self.reading, self.go = Event(), Event()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.reading.set()
        self.go.wait()
        return 0
