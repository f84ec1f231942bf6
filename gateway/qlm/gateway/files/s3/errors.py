"""Errors of S3-compatible storage in one sentence each, without anything secret."""

from typing import Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    InvalidRegionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
)

from qlm.domain.errors import QlmError, StorageUnavailableError

ACCESS_KEY: Final = "QLM_S3_ACCESS_KEY_ID"
SECRET_KEY: Final = "QLM_S3_SECRET_ACCESS_KEY"
SESSION_TOKEN: Final = "QLM_S3_SESSION_TOKEN"
"""Environment variables with credentials: engines do not inherit what begins with `QLM_`."""

_SETTINGS: Final = (
    PartialCredentialsError,
    NoRegionError,
    InvalidRegionError,
    ProfileNotFound,
)

_NOT_ALLOWED: Final = "it does not allow it: the credentials need get, put, delete and list in the bucket"
_ELSEWHERE: Final = "the bucket is in another region: set files.s3.region"

_UNKNOWN_CALL: Final = "it lacks a call that files and batches need, such as writes under a condition"

_REFUSED: Final = {
    "AccessDenied": _NOT_ALLOWED,
    "AllAccessDisabled": _NOT_ALLOWED,
    "InvalidAccessKeyId": "it does not know the access key",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "ExpiredToken": "the session token has expired",
    "InvalidToken": "the session token is not valid",
    "NoSuchBucket": "there is no such bucket",
    "NotImplemented": _UNKNOWN_CALL,
    "501": _UNKNOWN_CALL,
    "PermanentRedirect": _ELSEWHERE,
    "AuthorizationHeaderMalformed": _ELSEWHERE,
    "301": _ELSEWHERE,
    "403": _NOT_ALLOWED,
    "404": "there is no such bucket",
}
"""Meaning of error codes where trying again does not help; the numbers are of answers without a body."""

_PASSING: Final = {"RequestTimeTooSkewed": "the clocks of this machine and of the storage differ by minutes"}
"""Meaning of error codes that may pass without another configuration."""


class StorageRefusedError(StorageUnavailableError):
    """The storage refuses the bucket or the credentials: settings are wrong, here or there."""


def code_of(error: Exception) -> str:
    """Return the error code of the storage; empty if it did not answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def as_qlm(error: ClientError | BotoCoreError | OSError, where: str) -> QlmError:
    """Return the error of QLM for one of a call.

    Args:
        error: What the call raised.
        where: The bucket with its server, for the message.
    """
    if isinstance(error, NoCredentialsError):
        expected = f"set {ACCESS_KEY} and {SECRET_KEY}, or give it a file of shared credentials"
        return StorageRefusedError(f"{where}: there are no credentials for it; {expected}")
    if isinstance(error, _SETTINGS):
        return StorageRefusedError(f"{where}: {_one_line(error)}")
    if (code := code_of(error)) in _REFUSED:
        return StorageRefusedError(f"{where}: {_REFUSED[code]} ({code})")
    if code in _PASSING:
        return StorageUnavailableError(f"{where}: {_PASSING[code]}")
    if code:
        return StorageUnavailableError(f"{where} answered {code}")
    return StorageUnavailableError(f"{where} cannot be reached ({type(error).__name__})")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
