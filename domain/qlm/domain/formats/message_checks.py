"""Checks of the types of a request that came as a message: another program may have written it.

A wrong type shows far from here, as an exception in whatever part computes with it first.
"""

from array import array
from collections.abc import Mapping
from math import isfinite
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.group import RequestClass
from qlm.domain.ids import TOKEN_ID_MAX, TokenIds
from qlm.domain.request import PRIORITY_LIMIT, Request
from qlm.domain.sampling import Sampling
from qlm.domain.slo import check_ms

_INT64_MAX: Final = 2**63 - 1

QUEUE_BYTES_MAX: Final = 250
"""Longest name of the queue of a class, or of its late class: with `.lock` behind it, AMQP has 255 bytes."""

_TEXT: Final = frozenset({str})
_FLAG: Final = frozenset({bool})
_WHOLE: Final = frozenset({int})
_NUMBER: Final = frozenset({int, float})

_Types = Mapping[str, frozenset[type]]

_OF_REQUEST: Final[_Types] = {
    **dict.fromkeys(("id", "tenant", "fingerprint", "traceparent"), _TEXT),
    **dict.fromkeys(("arrival_ns", "prompt_tokens"), _WHOLE),
    "detached": _FLAG,
}
_OF_CLASS: Final[_Types] = {
    **dict.fromkeys(("model", "slo", "cluster"), _TEXT),
    "priority": _WHOLE,
    "target_ms": _NUMBER | {type(None)},
    "late": _FLAG,
}
_OF_SAMPLING: Final[_Types] = {
    **dict.fromkeys(("max_tokens", "min_tokens", "top_k"), _WHOLE),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), _NUMBER),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), _NUMBER),
    "seed": _WHOLE | {type(None)},
    "ignore_eos": _FLAG,
    **dict.fromkeys(("grammar", "adapter", "media"), _TEXT),
}
_OF_ANSWER: Final[_Types] = {
    **dict.fromkeys(("skip_special_tokens", "include_stop"), _FLAG),
    "echo_text": _TEXT,
}


def check_request(request: Request) -> None:
    """Refuse a request with a value of another type than its field has, or one that no time can be.

    Raises:
        InvalidValueError: It has one.
    """
    _check(request, "", _OF_REQUEST)
    if not 0 <= request.arrival_ns <= _INT64_MAX:
        raise InvalidValueError("arrival_ns", request.arrival_ns, f"a time from 0 to {_INT64_MAX}")
    _check_class(request.cls)
    _check_sampling(request.sampling)
    _check(request.answer, "answer.", _OF_ANSWER)
    for text in request.answer.stop:
        if type(text) is not str:
            raise InvalidValueError("answer.stop", text, "texts")
    _check_ids("prompt_ids", request.prompt_ids)
    _check_ids("prompt_tail", request.prompt_tail)


def _check_class(cls: RequestClass) -> None:
    _check(cls, "cls.", _OF_CLASS)
    if abs(cls.priority) > PRIORITY_LIMIT:
        raise InvalidValueError("cls.priority", cls.priority, f"from -{PRIORITY_LIMIT} to {PRIORITY_LIMIT}")
    if cls.target_ms is not None:
        check_ms("cls.target_ms", cls.target_ms)
    if len(cls.missed().queue) > QUEUE_BYTES_MAX:  # it consists of ASCII
        raise InvalidValueError("cls", cls.queue, f"names whose queue has at most {QUEUE_BYTES_MAX} bytes")
    pace = cls.tokens_per_s
    if pace is not None and not isfinite(pace):
        raise InvalidValueError("cls.slo", cls.slo, "a finite pace")


def _check_sampling(sampling: Sampling) -> None:
    _check(sampling, "sampling.", _OF_SAMPLING)
    _check_ids("sampling.stop_token_ids", sampling.stop_token_ids)
    _check_ids("sampling.eos_token_ids", sampling.eos_token_ids)
    _check_ids("sampling.logit_bias", tuple(token_id for token_id, _ in sampling.logit_bias))
    for token_id, bias in sampling.logit_bias:
        if not isfinite(bias):
            raise InvalidValueError(f"sampling.logit_bias[{token_id}]", bias, "a finite number")


def _check(value: object, path: str, types: _Types) -> None:
    for name, expected in types.items():
        found = getattr(value, name)
        kind = type(found)
        if kind not in expected or (kind is float and not isfinite(found)):
            names = " or ".join(sorted(each.__name__ for each in expected))
            raise InvalidValueError(path + name, found, f"a finite value of type {names}")
        if kind is int and abs(found) > _INT64_MAX:
            raise InvalidValueError(path + name, found, "a number of 64 bits")


def _check_ids(path: str, token_ids: TokenIds) -> None:
    try:
        array("I", token_ids)  # the quickest check of thousands: 32 bits are what output logs have for each
    except (TypeError, OverflowError) as error:
        raise InvalidValueError(path, token_ids, f"token ids from 0 to {TOKEN_ID_MAX}") from error
