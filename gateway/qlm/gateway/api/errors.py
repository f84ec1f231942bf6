"""Errors as OpenAI's clients expect them, and their mapping from QLM's own errors and outcomes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from qlm.domain.errors import (
    BrokerUnavailableError,
    InvalidValueError,
    QlmError,
    StorageUnavailableError,
    StoreUnavailableError,
)
from qlm.domain.outcome import Outcome
from qlm.domain.shown import cut
from qlm.domain.shown import shown as shown_as_python
from qlm.gateway.api.fields.openai import ErrorAnswer

_RETRY_UNAVAILABLE_S: Final = 1.0
"""A broker or store that restarts is back within seconds."""

STOPPING: Final = "gateway_stopping"
"""Error code of a gateway that stops; another gateway serves."""


@dataclass(slots=True, kw_only=True)
class ApiError(Exception):
    """An error answer.

    Attributes:
        status: HTTP status.
        message: The problem, the value, and what was expected.
        kind: OpenAI's `type`.
        param: The offending field.
        code: OpenAI's `code`: a word for programs.
        headers: Further headers of the answer.
        details: What Anthropic's SDK goes by; empty for most errors.
        anthropic_message: The message in Anthropic's shape, if its clients go by other words.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)
    anthropic_message: str | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> ErrorAnswer:
        """Return the answer's body."""
        return {
            "error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code},
        }


def invalid(field_name: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """Return a 400 about one field."""
    return ApiError(status=400, message=message, param=field_name, code=code)


OVERFLOW: Final = "This model's maximum context length is"
"""How the message of an overflow begins, as in vLLM: LiteLLM and others know one by these words."""


def too_long(field_name: str, message: str, anthropic_message: str) -> ApiError:
    """Return a 400 about a prompt or an output limit beyond the context.

    Clients of Anthropic's API shorten the conversation, or ask for a shorter answer, upon the words of
    `anthropic_message` alone: "prompt is too long", or "input length and `max_tokens` exceed context limit".
    """
    code = "context_length_exceeded"
    return ApiError(
        status=400, message=message, param=field_name, code=code, anthropic_message=anthropic_message
    )


def shown(value: object) -> str:
    """Return a value for a message: as JSON, shortened if it is long."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number, gRPC has
    try:
        return cut(orjson.dumps(value).decode())
    except orjson.JSONEncodeError:
        return shown_as_python(value)


def retry_headers(retry_after_s: float | None) -> dict[str, str]:
    """Return the headers that ask a client to retry after a time; None: not to retry."""
    if retry_after_s is None:
        return {"x-should-retry": "false"}
    return {
        "retry-after": str(max(1, math.ceil(retry_after_s))),
        "retry-after-ms": str(max(1, math.ceil(retry_after_s * 1000))),
        "x-should-retry": "true",
    }


def from_qlm(error: QlmError) -> ApiError:
    """Return the client's error for an error of the domain or of a port."""
    match error:
        case InvalidValueError():
            return invalid(error.field, str(error))
        case BrokerUnavailableError():
            return unavailable(f"the global queue is not available: {error}", "broker_unavailable")
        case StoreUnavailableError():
            return unavailable(f"the shared state is not available: {error}", "store_unavailable")
        case StorageUnavailableError():
            return unavailable(f"the storage of files is not available: {error}", "storage_unavailable")
    return ApiError(status=500, message=str(error), kind="server_error", code="internal_error")


def unavailable(message: str, code: str, retry_after_s: float = _RETRY_UNAVAILABLE_S) -> ApiError:
    """Return a 503 that asks for a retry."""
    headers = retry_headers(retry_after_s) | {"x-llm-d-request-dropped-reason": code}
    return ApiError(status=503, message=message, kind="server_error", code=code, headers=headers)


CLIENT_CLOSED: Final = 499
"""Status of a cancelled request, as nginx and gRPC gateways use it."""

_OUTCOMES: Final[Mapping[Outcome, tuple[int, str, str]]] = {
    Outcome.EXPIRED: (504, "timeout_error", "the request's deadline passed before it was answered"),
    Outcome.CANCELLED: (CLIENT_CLOSED, "conflict_error", "the request was cancelled"),
    Outcome.ENGINE_LOST: (
        503,
        "server_error",
        "the engine was lost and the request could not be resumed exactly",
    ),
    Outcome.OUTPUT_LOST: (
        503,
        "server_error",
        "the request's output is no longer known; nothing was spliced",
    ),
    Outcome.REFUSED: (400, "invalid_request_error", "the engine refused the request"),
    Outcome.FAILED: (500, "server_error", "the request failed"),
}


def defect(error: Exception, id: str) -> ApiError:
    """Return the client's error for an unexpected exception, which the log has under `id`."""
    message = f"the gateway failed ({type(error).__name__}); see its log"
    headers = {"x-request-id": id}
    return ApiError(status=500, message=message, kind="server_error", code="internal_error", headers=headers)


def from_outcome(outcome: Outcome, detail: str = "") -> ApiError:
    """Return the error for a request that ended badly.

    A cancelled request answers 499, as proxies do for a client that has gone.
    """
    status, kind, sentence = _OUTCOMES[outcome]
    # Without this header, OpenAI's client retries every 5xx.
    headers = {"x-should-retry": "true" if outcome.retryable and outcome is not Outcome.EXPIRED else "false"}
    if headers["x-should-retry"] == "true":
        headers |= retry_headers(_RETRY_UNAVAILABLE_S)
    message = f"{sentence}: {detail}" if detail else sentence
    return ApiError(status=status, message=message, kind=kind, code=str(outcome), headers=headers)
