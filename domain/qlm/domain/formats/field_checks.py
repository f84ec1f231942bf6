"""Checks of the fields of extensions, by name: values come from other processes."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.token_logprobs import LOGPROBS_MAX
from qlm.domain.slo import check_ms, check_pace

RENDER_STATE_CHARACTERS_MAX: Final = 32_768
RESPONSE_STATE_CHARACTERS_MAX: Final = 60_000
NAME_CHARACTERS_MAX: Final = 100
CALLS_MAX: Final = 1_000_000


def _number(check: Callable[[str, float], None]) -> Callable[[str, Any], None]:
    def checked(field: str, value: Any) -> None:
        if type(value) not in (int, float):
            raise InvalidValueError(field, value, "a number")
        check(field, value)

    return checked


def _probability(field: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidValueError(field, value, "a probability from 0 to 1")


def _whole(least: int, largest: int) -> Callable[[str, Any], None]:
    def checked(field: str, value: Any) -> None:
        if type(value) is not int or not least <= value <= largest:
            raise InvalidValueError(field, value, f"a whole number from {least} to {largest}")

    return checked


def _characters(least: int, largest: int) -> Callable[[str, Any], None]:
    def checked(field: str, value: Any) -> None:
        if not isinstance(value, str) or not least <= len(value) <= largest or not _is_utf8(value):
            raise InvalidValueError(field, value, f"a text of {least} to {largest} characters")

    return checked


def _flag(field: str, value: Any) -> None:
    if type(value) is not bool:
        raise InvalidValueError(field, value, "true or false")


def _is_utf8(text: str) -> bool:
    return text.encode(errors="replace") == text.encode(errors="surrogatepass")


CHECKS: Final[Mapping[str, Callable[[str, Any], None]]] = {
    "p_met": _number(_probability),
    "render_state": _characters(0, RENDER_STATE_CHARACTERS_MAX),
    "render_state_tokens": _whole(0, 2**31 - 1),
    "preemptions": _whole(0, 2**31 - 1),
    "engine_losses": _whole(0, 2**31 - 1),
    "cached_tokens": _whole(0, 2**31 - 1),
    "logprobs": _whole(0, LOGPROBS_MAX),
    "prompt_logprobs": _whole(0, LOGPROBS_MAX),
    "choice": _whole(0, CALLS_MAX),
    "choices": _whole(2, CALLS_MAX),
    "prompts": _whole(1, CALLS_MAX),
    "notify": _flag,
    "task_id": _characters(1, NAME_CHARACTERS_MAX),
    "task_calls": _whole(0, CALLS_MAX),
    "task_deadline_ns": _whole(1, 2**63 - 1),
    "deadline_ms": _number(check_ms),
    "reader_tokens_per_s": _number(check_pace),
    "response_state": _characters(0, RESPONSE_STATE_CHARACTERS_MAX),
}
"""Checks of a value, each of (path, value); they raise InvalidValueError."""
