import pytest

from qlm.domain.errors import (
    BrokerUnavailableError,
    InvalidValueError,
    QlmError,
    StoreUnavailableError,
)
from qlm.domain.outcome import Outcome
from qlm.gateway.api.errors import from_outcome, from_qlm, retry_headers


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (InvalidValueError("slo.ttft_ms", -1, "a positive number"), 400, False),
        (BrokerUnavailableError("gone"), 503, True),
        (StoreUnavailableError("gone"), 503, True),
        (QlmError("?"), 500, False),
    ],
)
def test_each_error_of_qlm_has_a_status_and_says_if_a_retry_helps(
    error: QlmError, status: int, retry: bool
) -> None:
    answer = from_qlm(error)
    assert answer.status == status
    assert ("retry-after" in answer.headers) == retry


def test_an_invalid_value_names_its_field() -> None:
    assert from_qlm(InvalidValueError("top_k", -5, "0 or more")).param == "top_k"


@pytest.mark.parametrize(
    ("outcome", "detail", "status", "retry"),
    [
        (Outcome.EXPIRED, "", 504, "false"),
        (Outcome.CANCELLED, "", 499, "false"),
        (Outcome.ENGINE_LOST, "", 503, "true"),
        (Outcome.OUTPUT_LOST, "", 503, "true"),
        (Outcome.FAILED, "poison message", 500, "false"),
        (Outcome.REFUSED, "too long", 400, "false"),
    ],
)
def test_each_bad_end_has_a_status_and_says_if_a_retry_helps(
    outcome: Outcome, detail: str, status: int, retry: str
) -> None:
    error = from_outcome(outcome, detail)
    assert (error.status, error.code) == (status, str(outcome))
    assert error.headers["x-should-retry"] == retry
    assert detail in error.message


def test_retry_after_is_whole_seconds_rounded_up_and_exact_milliseconds() -> None:
    headers = retry_headers(1.25)
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1250")
