"""The answers to clients whose connections or requests break a limit."""

from http import HTTPStatus

from qlm.gateway.api.errors import STOPPING, ApiError, unavailable
from qlm.gateway.core.connection_limits import Breach, ConnectionLimits
from qlm.gateway.http.responses import error_answer


def refusal(breach: Breach, limits: ConnectionLimits) -> ApiError:
    """Return the error for a limit that was broken."""
    match breach:
        case Breach.UNFINISHED | Breach.CONNECTIONS | Breach.ADDRESS:
            return _no_room(breach, limits)
        case Breach.HEADERS_LATE | Breach.BODY_LATE:
            return _too_slow(breach, limits)
        case Breach.URL:
            message = f"the URL has more than {limits.url_bytes_max} bytes; expected at most that"
            return ApiError(status=414, message=message, code="url_too_long")
        case Breach.HEADERS:
            message = (
                f"the request has more than {limits.headers_max} headers or {limits.header_bytes_max} "
                "bytes of them; expected at most that"
            )
            return ApiError(status=431, message=message, code="headers_too_large")
        case Breach.STOPPING:
            return unavailable("this gateway is stopping; try again", STOPPING)
        case Breach.MALFORMED:
            message = "the request is not HTTP/1.1; expected a request line, headers and a body"
            return ApiError(status=400, message=message, code="malformed_http")


def _too_slow(breach: Breach, limits: ConnectionLimits) -> ApiError:
    if breach is Breach.HEADERS_LATE:
        message = f"the headers were not complete after {limits.headers_timeout_s:g} s; expected them sooner"
        return ApiError(status=408, message=message, code="headers_timeout")
    message = (
        f"the body was not complete in time; expected it within {limits.body_timeout_s:g} s, "
        f"or at {limits.body_bytes_per_s_min:g} bytes per second"
    )
    return ApiError(status=408, message=message, code="body_timeout")


def _no_room(breach: Breach, limits: ConnectionLimits) -> ApiError:
    match breach:
        case Breach.UNFINISHED:
            message = f"unfinished bodies have more than {limits.unfinished_bytes_max} bytes; send it again"
            return unavailable(message, "too_many_unfinished_bodies")
        case Breach.ADDRESS:
            message = f"the address has {limits.per_address_max} connections; expected at most that"
            return unavailable(message, "too_many_connections_of_address")
        case _:
            message = f"the listener has {limits.connections_max} connections; expected at most that"
            return unavailable(message, "too_many_connections")


def answer_bytes(error: ApiError, id: str) -> bytes:
    """Return an error as the last answer on a connection; `id` names it."""
    answer = error_answer(error)
    answer.headers.update({"x-request-id": id, "connection": "close"})
    status = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n".encode()
    lines = (name + b": " + value + b"\r\n" for name, value in answer.raw_headers)
    return b"".join((status, *lines, b"\r\n", bytes(answer.body)))
