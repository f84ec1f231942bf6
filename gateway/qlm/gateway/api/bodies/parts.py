"""Objects inside of request bodies: options of a stream, and the objective."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from qlm.domain.formats.field_checks import CALLS_MAX, NAME_CHARACTERS_MAX
from qlm.domain.request import PRIORITY_LIMIT
from qlm.gateway.core.limits import P_MET_MIN_MAX


def _by_token_id(bias: dict[str, float]) -> dict[str, float]:
    wrong = next((key for key in bias if not (key.isascii() and key.isdigit() and len(key) <= 10)), None)
    if wrong is not None:
        raise ValueError(f"keys that are token ids, such as '42', not {wrong[:100]!r}")
    return bias


_EXACT_MAX: Final = 2**53
"""Largest number up to which all whole numbers are floats."""


def integer_of(value: object) -> object:
    """Return a number that is whole as an integer, and anything else as it is."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_MAX:
        return int(value)
    return value


Integral = BeforeValidator(integer_of)
"""Takes 5.0 for 5, as vLLM does: JSON has one kind of numbers, and some clients write all of them so."""

TokenId = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
TokenLists = Annotated[list[TokenIds], Field(fail_fast=True)]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
StopTokenIds = Annotated[list[TokenId], Field(max_length=64)]
LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=1024),
    AfterValidator(_by_token_id),
]
Priority = Annotated[int, Field(strict=True, ge=-PRIORITY_LIMIT, le=PRIORITY_LIMIT), Integral]

Prompts = str | list[int] | list[str] | list[list[int]]
"""One or several prompts."""


class Strict(BaseModel):
    """Base of what clients send: no unknown field, no conversion of types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Strict):
    """Contents of a stream besides text."""

    include_usage: bool = False  # End with an event that has the token counts and no choices
    continuous_usage_stats: bool = False  # Token counts so far in each event, as in vLLM
    include_obfuscation: bool = False  # Accepted, not used


class TaskBody(Strict):
    """The task of several calls that a call belongs to; its deadline is that of the last call's answer."""

    # Name of the task, the same in all of its calls; tasks of different tenants never meet.
    id: Annotated[str, StringConstraints(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    # Deadline of the whole task: RFC 3339 with its offset from UTC, or seconds since the epoch, at most 30
    # days ahead.
    deadline_at: float | str
    # Calls still to come, this one included; without, as many as earlier tasks of the tenant and model had.
    calls_left: Annotated[int, Field(strict=True, ge=1, le=CALLS_MAX), Integral] | None = None


class SloBody(Strict):
    """The objective: a deadline, first-token and per-token times, or a first token and a reading speed.

    A deadline may come beside the others: both count. Times are from 0.01 ms to 30 days. Or a task: the
    call's deadline then follows from what its task has left.
    """

    deadline_ms: float | None = None  # The whole answer within this time of arrival
    # The deadline as a time: RFC 3339 with its offset from UTC, or seconds since the epoch, at most 30 days
    # ahead.
    deadline_at: float | str | None = None
    ttft_ms: float | None = None  # The first token within this time of arrival
    tpot_ms: float | None = None  # Time per token after the first one; together with `ttft_ms`
    # Reading speed after the first token; together with `ttft_ms`, in place of `tpot_ms`.
    tokens_per_s: float | None = None
    # A usual pace in place of `tokens_per_s`: 4.8 tokens per second for `reading`, 3.3 for `speech`. Without
    # `ttft_ms`, the first token within a second.
    reader: Literal["reading", "speech"] | None = None
    # The task of several calls that this one belongs to, in place of all objectives above.
    task: TaskBody | None = None
    # `serve` answers a late request late; `drop` ends it as `expired` when its deadline has passed.
    on_miss: Literal["serve", "drop"] = "serve"
    # Refuse (429) unless the objective is forecast to be met with this probability; without,
    # `limits.p_met_min` of the configuration.
    p_met_min: Annotated[float, Field(ge=0, le=P_MET_MIN_MAX)] | None = None
    # Promise that at least this share of the requests of its class meet the objective, as far as plans can.
    p_met: Annotated[float, Field(ge=0, le=P_MET_MIN_MAX)] | None = None
