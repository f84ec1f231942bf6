"""What a route's body may be: declared at its handler, for the document of the API."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel

_ATTRIBUTE: Final = "accepted_bodies"

Handler = TypeVar("Handler", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class AcceptedBody:
    """What the body of a route may be.

    Attributes:
        model: Its fields, each with a comment.
        neutral: Further fields that are accepted, at these values and null only.
        media_type: How it is sent.
    """

    model: type[BaseModel]
    neutral: Mapping[str, tuple[object, ...]]
    media_type: str


def accepts(
    model: type[BaseModel],
    *,
    neutral: Mapping[str, tuple[object, ...]] | None = None,
    media_type: str = "application/json",
) -> Callable[[Handler], Handler]:
    """Declare the body of the route of the handler below; several times if it may be one of several.

    It declares only: the handler has to check what it gets.

    Args:
        model: Its fields, each with a comment.
        neutral: Further fields that are accepted, at these values and null only.
        media_type: How it is sent.
    """

    def declare(handler: Handler) -> Handler:
        declared = AcceptedBody(model, neutral or {}, media_type)
        setattr(handler, _ATTRIBUTE, (declared, *accepted_bodies(handler)))
        return handler

    return declare


def accepted_bodies(handler: Callable[..., Any]) -> Sequence[AcceptedBody]:
    """Return what is declared at a handler; nothing if it takes no body."""
    declared: Sequence[AcceptedBody] = getattr(handler, _ATTRIBUTE, ())
    return declared
