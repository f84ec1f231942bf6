"""What an engine's answer with another status than 200 says: of the request, or of the engine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import orjson

from qlm.domain.errors import EngineRefusedError, EngineUnavailableError

FAULTS_OF_REQUESTS: Final = frozenset({400, 413, 422})
"""Statuses that no other engine of the model would answer with success.

Others, such as 401, 404, 408 and 429, are of the engine, its options or a proxy before it.
"""

BUSY: Final = 503
"""Status of a server that takes nothing at present, such as vLLM with `--max-num-queued-reqs`; it lives."""

BLAMELESS: Final = frozenset({301, 302, 303, 307, 308, 401, 404, 405, 407, 429, BUSY})
"""Statuses that no text of a request brings about: they are about the route, the key or the load.

Others may be: a proxy may refuse words with 403, and long prompts with 408.
"""

_SHOWN_MAX: Final = 500


class StatusError(EngineUnavailableError):
    """The engine answered with a status that is no fault of the request.

    Attributes:
        status: The status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def error_of(status: int, body: bytes) -> EngineRefusedError | StatusError:
    """Return the error that an answer with another status than 200 means."""
    message = f"the engine answered {status}: {_words_of(body)[:_SHOWN_MAX]}"
    return EngineRefusedError(message) if status in FAULTS_OF_REQUESTS else StatusError(status, message)


def _words_of(body: bytes) -> str:
    """Return the words of an error in OpenAI's form, or that of FastAPI; another body as it is."""
    try:
        plain: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        plain = None
    match plain:
        case {"error": {"message": str(message)}} | {"message": str(message)} | {"detail": str(message)}:
            return message
    return body.decode(errors="replace")


@contextmanager
def naming(adapter: str | None) -> Iterator[None]:
    """Turn a 404 to a call that names an adapter into EngineRefusedError: the engine does not have it."""
    try:
        yield
    except StatusError as error:
        if adapter and error.status == 404:
            raise EngineRefusedError(str(error)) from error
        raise
