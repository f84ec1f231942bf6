"""What batches need of a route whose requests may be their lines."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qlm.domain.request import RequestMetadata
from qlm.gateway.core.session_events import SendFinal
from qlm.gateway.sessions.gateway import Gateway
from qlm.gateway.sessions.intake import Prepared

Answer = Callable[[RequestMetadata, SendFinal], Awaitable[Mapping[str, Any]]]
"""Returns the whole answer of a request that ended well, as its route does."""


@dataclass(frozen=True, slots=True)
class PreparedLine:
    """A line that is admitted.

    Attributes:
        prepared: Its request.
        answer: Makes its answer.
    """

    prepared: Prepared
    answer: Answer


PrepareLine = Callable[[Gateway, dict[str, Any], Mapping[str, str]], Awaitable[PreparedLine]]
"""Admits the body of a line with its headers, as its route does."""

LineRoutes = Mapping[str, PrepareLine]
"""The routes of lines, by path."""
