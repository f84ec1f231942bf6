"""Tries of a call of the storage, and the time between them."""

from typing import Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    ConnectTimeoutError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
)

from qlm.gateway.files.s3.errors import code_of

TRIES: Final = 4
"""Tries of a call, with growing pauses between them."""

SMALL_SHARE: Final = 0.4
"""Time limit of a try that moves little, as a share of a call's: a silent one leaves time for another."""

_BEGIN_SHARE: Final = 0.5
"""Part of a call's time in which a try may begin."""

_BROKEN: Final = (ConnectionError, HTTPClientError, IncompleteReadError, OSError)
_SILENT: Final = (ConnectTimeoutError, ReadTimeoutError)

_TRANSIENT_STATUS: Final = (429, 500, 502, 503, 504)
_TRANSIENT_CODES: Final = ("RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "InternalError")

Failure = ClientError | BotoCoreError | OSError
"""Errors of a call of the client."""


def is_silence(error: Exception) -> bool:
    """Return whether a try ended since nothing came in its time."""
    return isinstance(error, _SILENT)


def pause_s(error: Failure, tried: int, passed_s: float, timeout_s: float, drawn: float) -> float | None:
    """Return the pause before the next try of a call; None if there is none.

    Args:
        error: What the last try raised.
        tried: Its tries so far.
        passed_s: Time since it began, seconds.
        timeout_s: Time limit of the call, seconds.
        drawn: A number from 0 to 1: calls that failed together do not come again together.
    """
    if tried >= TRIES or not _may_pass(error):
        return None
    pause = drawn * 2.0 ** (tried - 1)
    return pause if passed_s + pause <= _BEGIN_SHARE * timeout_s else None


def _may_pass(error: Failure) -> bool:
    if not isinstance(error, ClientError):
        return isinstance(error, _BROKEN)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status in _TRANSIENT_STATUS or code_of(error) in _TRANSIENT_CODES
