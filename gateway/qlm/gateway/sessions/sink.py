"""Destinations of a session's answer."""

from typing import Protocol

from qlm.gateway.api.errors import ApiError
from qlm.gateway.core.session_events import SendEvent, SendFinal


class Sink(Protocol):
    """Takes what a session sends; its methods never block."""

    def event(self, event: SendEvent) -> None:
        """Add new text."""
        ...

    def keep_alive(self) -> None:
        """Show the client that the connection is alive although there is no new text."""
        ...

    def final(self, final: SendFinal) -> None:
        """Add the last text and the end of the answer."""
        ...

    def interrupt(self, error: ApiError) -> None:
        """End the connection because this gateway stops; the request itself continues."""
        ...


class NoSink:
    """Discards the answer of a request whose client does not wait; the store keeps it."""

    def event(self, event: SendEvent) -> None:
        """Discard it."""

    def keep_alive(self) -> None:
        """Discard it."""

    def final(self, final: SendFinal) -> None:
        """Discard it."""

    def interrupt(self, error: ApiError) -> None:
        """Discard it."""
