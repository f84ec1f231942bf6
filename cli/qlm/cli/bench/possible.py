"""Check that the times of a request in a file can be: impossible ones would be rated as perfect."""

import math
from dataclasses import replace
from typing import Final, NamedTuple

from qlm.cli.bench.record import Sent
from qlm.domain.errors import InvalidValueError

_TOLERANCE_S: Final = 0.01
"""Difference of two clocks, or rounding, that makes no file impossible."""


class Fields(NamedTuple):
    """Where a file has the times of a request, for errors.

    Attributes:
        sent: Time of sending.
        chunks: Times of the parts of its answer, or of its tokens.
        end: Its end.
    """

    sent: str
    chunks: str
    end: str


def possible(sent: Sent, fields: Fields) -> Sent:
    """Return a request whose times can be.

    The end of a request with an error is at least the last of its other times: no figure rates it, and tools
    that cancel a request may note an earlier one.

    Raises:
        InvalidValueError: A time is infinite, the request was sent before it was due, or answered before it
            was sent, its parts are not in order, or its complete answer ended before the last of them; names
            the field.
    """
    times_s = [chunk.at_s for chunk in sent.chunks]
    for field, values in zip(fields, ((sent.scheduled_s, sent.sent_s), times_s, (sent.end_s,)), strict=True):
        for value in values:
            if not math.isfinite(value):
                raise InvalidValueError(field, value, "a finite number of seconds")
    if times_s != sorted(times_s):
        raise InvalidValueError(fields.chunks, "a time before the former one", "times that never fall")
    _check_order(fields.sent, "its scheduled time", sent.scheduled_s, sent.sent_s)
    _check_order(fields.chunks, "its sending", sent.sent_s, min(times_s, default=sent.sent_s))
    last_s = max([sent.sent_s, *times_s[-1:]])
    if sent.error is not None:
        return replace(sent, end_s=max(sent.end_s, last_s))
    _check_order(fields.end, "its sending or its last token", last_s, sent.end_s)
    return sent


def _check_order(field: str, first: str, first_s: float, then_s: float) -> None:
    if then_s < first_s - _TOLERANCE_S:
        raise InvalidValueError(field, f"{first_s - then_s:g} s before {first}", "a time after it")
