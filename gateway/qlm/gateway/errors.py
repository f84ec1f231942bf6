"""Errors as OpenAI's clients expect them, and what QLM's own errors become."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from qlm.domain.errors import (
    BrokerUnavailableError,
    EngineRefusedError,
    InvalidValueError,
    QlmError,
    StoreUnavailableError,
)
from qlm.domain.outcome import Outcome
from qlm.domain.shown import cut
from qlm.domain.shown import shown as shown_as_python
from qlm.gateway.fields.openai import ErrorAnswer

_RETRY_UNAVAILABLE_S: Final = 1.0
"""A broker or store that restarts is back within seconds."""

STOPPING: Final = "gateway_stopping"
"""The code of a refusal because this gateway stops; another one serves."""


@dataclass(slots=True, kw_only=True)
class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: HTTP status.
        message: What was wrong, the value, what was expected.
        kind: OpenAI's `type`.
        param: The offending field.
        code: OpenAI's `code`: a word for programs.
        headers: Further headers of the answer.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def body(self) -> ErrorAnswer:
        """The answer's body."""
        return {
            "error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code},
        }


def invalid(field_name: str | None, message: str, code: str = "invalid_value") -> ApiError:
    """A 400 about one field."""
    return ApiError(status=400, message=message, param=field_name, code=code)


def shown(value: object) -> str:
    """Write a value for a message: as JSON, cut if it is long."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number, gRPC has
    try:
        return cut(orjson.dumps(value).decode())
    except orjson.JSONEncodeError:
        return shown_as_python(value)


def retry_headers(retry_after_s: float | None) -> dict[str, str]:
    """Headers that tell OpenAI's clients (and any other) when to come back; None: not to."""
    if retry_after_s is None:
        return {"x-should-retry": "false"}
    return {
        "retry-after": str(max(1, math.ceil(retry_after_s))),
        "retry-after-ms": str(max(1, math.ceil(retry_after_s * 1000))),
        "x-should-retry": "true",
    }


def from_qlm(error: QlmError) -> ApiError:
    """What an error of the domain or of a port is to a client."""
    match error:
        case InvalidValueError():
            return invalid(error.field, str(error))
        case EngineRefusedError():
            return invalid(None, str(error), "refused_by_engine")
        case BrokerUnavailableError():
            return unavailable(f"the global queue is not available: {error}", "broker_unavailable")
        case StoreUnavailableError():
            return unavailable(f"the shared state is not available: {error}", "store_unavailable")
    return ApiError(status=500, message=str(error), kind="server_error", code="internal_error")


def unavailable(message: str, code: str) -> ApiError:
    """A 503 that is worth a retry."""
    headers = retry_headers(_RETRY_UNAVAILABLE_S) | {"x-llm-d-request-dropped-reason": code}
    return ApiError(status=503, message=message, kind="server_error", code=code, headers=headers)


CLIENT_CLOSED: Final = 499
"""Status of an answer to a request that somebody else cancelled, as nginx and gRPC gateways use it."""

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
    Outcome.FAILED: (500, "server_error", "the request failed"),
}


def defect(error: Exception, id: str) -> ApiError:
    """What clients hear of an error that nobody foresaw; `id` leads to it in the log."""
    message = f"the gateway failed ({type(error).__name__}); see its log"
    headers = {"x-request-id": id}
    return ApiError(status=500, message=message, kind="server_error", code="internal_error", headers=headers)


REFUSED: Final = "the engine refused it"
"""How an agent begins the detail of a request that its engine refused for good."""


def from_outcome(outcome: Outcome, detail: str = "") -> ApiError:
    """What the bad end of a request is to the client that waits for its answer.

    A cancelled request answers 499, as proxies do for a client that has gone.
    """
    status, kind, sentence = _OUTCOMES[outcome]
    if outcome is Outcome.FAILED and detail.startswith(REFUSED):
        status, kind = 400, "invalid_request_error"
    # Said explicitly either way: left to itself, OpenAI's client retries each 5xx.
    headers = {"x-should-retry": "true" if outcome.retryable and outcome is not Outcome.EXPIRED else "false"}
    if headers["x-should-retry"] == "true":
        headers |= retry_headers(_RETRY_UNAVAILABLE_S)
    message = f"{sentence}: {detail}" if detail else sentence
    return ApiError(status=status, message=message, kind=kind, code=str(outcome), headers=headers)
