"""Kinds of errors of Redis: the server or the way to it is away, or the data of one operation are damaged."""

import logging
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from redis.exceptions import DataError, ModuleError, NoSuchFieldsetError, RedisError, ResponseError

from qlm.domain.errors import StoreDataError, StoreUnavailableError, UndecodableDataError

log = logging.getLogger("qlm.store")

T = TypeVar("T")

_CODE: Final = re.compile(r"(?:^|\s-)([A-Z]{3,})\s")
"""The code that begins an error; servers before Redis 7 put that of a command after the one of the script."""

_DATA_CODES: Final = frozenset({"ERR", "WRONGTYPE"})
"""Codes of errors that depend on the operation and its keys."""

_NOT_PERMITTED: Final = ("the user executing the script can't", "acl failure in script")
"""What Redis says, without a code, of a command in a script that its user may not run, in 7.0 and later."""

_DATA_ERRORS: Final = (DataError, ModuleError, NoSuchFieldsetError)
"""Classes of redis-py for errors that depend on the operation."""

_UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)
"""What the decoding of a damaged value leads to."""


@contextmanager
def translated_errors(address: str) -> Iterator[None]:
    """Translate errors of the client into those of the port, by kind.

    An error that Redis answers with a code of its own tells a state of the server (NOREPLICAS, MISCONF, OOM,
    READONLY, LOADING, ...): it is away, whatever the code. Without such a code, the operation failed on its
    keys, unless Redis names missing rights.

    Raises:
        StoreUnavailableError: Redis cannot be reached, or cannot write.
        StoreDataError: The operation found damaged keys.
    """
    try:
        yield
    except (RedisError, OSError) as error:
        if is_about_data(error):
            raise StoreDataError(f"Redis at {address} failed at one operation: {error}") from error
        raise StoreUnavailableError(f"Redis at {address} cannot be used: {error}") from error


def is_about_data(error: RedisError | OSError) -> bool:
    """Return whether an error depends on the keys of the operation, not on the state of the server."""
    if isinstance(error, _DATA_ERRORS):
        return True
    if type(error) is not ResponseError:  # classes of redis-py are for codes
        return False
    text = str(error)
    if any(words in text.lower() for words in _NOT_PERMITTED):
        return False
    return set(_CODE.findall(text)) <= _DATA_CODES


@contextmanager
def readable() -> Iterator[None]:
    """Translate whatever the decoding of a damaged reply leads to.

    Raises:
        StoreDataError: The reply cannot be decoded.
    """
    try:
        yield
    except UndecodableDataError as error:
        raise StoreDataError(str(error)) from error
    except _UNREADABLE as error:
        raise StoreDataError(f"a value in Redis cannot be read: {error!r:.200}") from error


def readable_ones(read: Callable[[Any], T], replies: Sequence[Any]) -> list[T]:
    """Decode a part of a reply each; leave out, and log, those that are damaged."""
    found = []
    for reply in replies:
        try:
            with readable():
                found.append(read(reply))
        except StoreDataError as error:
            log.debug("left out: %s", error)
    return found
