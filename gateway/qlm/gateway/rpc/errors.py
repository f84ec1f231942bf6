"""Errors as gRPC clients expect them: canonical status, error details, retry delay."""

from collections.abc import Mapping
from typing import Final

from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from qlm.domain.shown import cut
from qlm.gateway.api.errors import CLIENT_CLOSED, ApiError

_CODES: Final[Mapping[int, StatusCode]] = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    409: StatusCode.FAILED_PRECONDITION,
    413: StatusCode.RESOURCE_EXHAUSTED,
    422: StatusCode.INVALID_ARGUMENT,
    429: StatusCode.RESOURCE_EXHAUSTED,
    CLIENT_CLOSED: StatusCode.CANCELLED,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}

_HTTP_ONLY: Final = frozenset({"connection", "www-authenticate"})

MESSAGE_CHARACTERS_MAX: Final = 1000
"""A status travels in HTTP/2 headers, which clients limit to 8 KiB; the message is in them twice."""

ERROR_DOMAIN: Final = "qlm"
"""`domain` of each google.rpc.ErrorInfo, whose `reason` is the `code` of the HTTP API."""


def code_of(error: ApiError) -> StatusCode:
    """Return the canonical status of an error."""
    return _CODES.get(error.status, StatusCode.INTERNAL)


def message_of(error: ApiError) -> str:
    """Return the error's message, shortened to fit a status."""
    return cut(error.message, MESSAGE_CHARACTERS_MAX)


def trailers(error: ApiError) -> tuple[tuple[str, str | bytes], ...]:
    """Return the trailing metadata of an error: its HTTP headers, and google.rpc.Status."""
    plain = [(name, value) for name, value in error.headers.items() if name not in _HTTP_ONLY]
    return (*plain, ("grpc-status-details-bin", _status(error).SerializeToString()))


def _status(error: ApiError) -> Status:
    """Return an error with google.rpc's details: BadRequest for a field, RetryInfo if a retry helps."""
    code: int = code_of(error).value[0]
    status = Status(code=code, message=message_of(error))
    details: list[Message] = [ErrorInfo(reason=error.code or "", domain=ERROR_DOMAIN)]
    if error.param is not None:
        violation = BadRequest.FieldViolation(field=error.param, description=message_of(error))
        details.append(BadRequest(field_violations=[violation]))
    if (retry_ms := error.headers.get("retry-after-ms")) is not None:
        retry = RetryInfo()
        retry.retry_delay.FromMilliseconds(int(retry_ms))
        details.append(retry)
    for each in details:
        status.details.add().Pack(each)
    return status
