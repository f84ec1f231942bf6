"""Calls that ask for an answer, as metrics and spans know them before they are requests."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request as HttpRequest

from qlm.domain.errors import QlmError
from qlm.domain.ports.tracing import HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS
from qlm.domain.request import AnswerKind
from qlm.gateway.api.errors import ApiError, from_qlm
from qlm.gateway.api.renamed import image_renamed, renamed
from qlm.gateway.observability.tracing import Attempt
from qlm.gateway.sessions.gateway import Gateway


def attempt_of(
    gateway: Gateway, request: HttpRequest, kind: AnswerKind, headers: Mapping[str, str]
) -> Attempt:
    """Return the attempt that a call is; `headers` are its own, by name in lower case."""
    return Attempt(
        kind=kind,
        arrival_ns=gateway.clock.now_ns(),
        headers=headers,
        call={HTTP_METHOD: request.method, HTTP_ROUTE: request.scope["path"]},
        answered=lambda error: {HTTP_STATUS: error.status},
    )


@contextmanager
def fields_renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors about fields of a chat call them as the API does whose body became that chat."""
    try:
        yield
    except (ApiError, QlmError) as error:
        raise renamed(from_qlm(error) if isinstance(error, QlmError) else error, names) from error


@contextmanager
def images_renamed(chat: Mapping[str, Any], own: Iterable[str]) -> Iterator[None]:
    """Let errors about images of a chat name them by their places in the body that became the chat.

    Args:
        chat: The body of the chat.
        own: Places of the images of that body, in their order; looked at after an error only.
    """
    try:
        yield
    except ApiError as error:
        raise image_renamed(error, chat["messages"], tuple(own)) from error
