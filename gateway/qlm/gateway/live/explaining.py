"""Port to what puts the place of a group or a request into words; the command `qlm` has the words."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypedDict

from qlm.gateway.api.fields.instances import ConfiguredInstance
from qlm.gateway.api.fields.live import ExplanationText
from qlm.gateway.api.fields.queues import GroupFields
from qlm.gateway.api.fields.requests import RequestDetails


class Question(TypedDict):
    """A group or request to explain, with what the gateway knows of it, as plain data for a process."""

    name: str  # Of the group or request
    plan: str | None  # The latest plan, as it is stored; null if there is none
    request: RequestDetails | None  # The request of that id; null if none is known
    classmates: Sequence[GroupFields]  # Groups of its class, in order of arrival
    configured: Sequence[ConfiguredInstance]  # Instances of the configuration
    now_s: float  # The present, seconds since the epoch


Explain = Callable[[Question], Awaitable[Sequence[ExplanationText] | None]]
"""Explains; returns None if neither the plan nor the gateway knows the name."""
