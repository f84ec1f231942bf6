"""Retries of OpenAI's SDKs: which call may be taken up by which, and for how long."""

import pytest

from qlm.domain.ids import RequestId
from qlm.gateway.core.sdk_retries import EARLY_S, SdkCall, SdkRetries, sdk_call

S = 1_000_000_000
PYTHON = {"x-stainless-retry-count": "0", "x-stainless-read-timeout": "600"}


def call(*, tenant: str = "t", digest: str = "d", retry: int = 1) -> SdkCall:
    return SdkCall(tenant, digest, retry, 0)


def left(*ids: str) -> SdkRetries:
    retries = SdkRetries()
    for id in ids:
        retries.left(call(retry=0), RequestId(id), 0, 10 * S)
    return retries


def test_a_retry_takes_up_the_request_given_up_first_and_each_once() -> None:
    retries = left("a", "b")
    assert [retries.take(call(), S) for _ in range(3)] == ["a", "b", None]


@pytest.mark.parametrize("other", [call(tenant="u"), call(digest="e"), call(retry=0)])
def test_a_call_of_another_tenant_body_or_number_takes_up_nothing(other: SdkCall) -> None:
    retries = left("a")
    assert retries.take(other, S) is None
    assert retries.take(call(), S) == "a"


def test_what_nobody_takes_up_is_forgotten() -> None:
    retries = left("a")
    retries.left(call(digest="later"), RequestId("b"), 5 * S, 10 * S)
    assert retries.take(call(), 10 * S) is None
    assert retries.take(call(digest="later"), 14 * S) == "b"


def test_a_request_that_is_given_up_again_is_kept_for_its_whole_time() -> None:
    retries = SdkRetries()
    retries.left(call(retry=0), RequestId("a"), 3 * S, 10 * S)
    assert retries.take(call(), 4 * S) == "a"
    retries.left(call(), RequestId("a"), 12 * S, 10 * S)
    assert retries.take(call(retry=2), 14 * S) == "a", "the end of its first time was at 13 s"
    assert retries.take(call(retry=2), 14 * S) is None


@pytest.mark.parametrize(
    ("headers", "gives_up_s"),
    [
        (PYTHON, 600 - EARLY_S),
        ({"x-stainless-retry-count": "2", "x-stainless-timeout": "3"}, 3 - EARLY_S),
        ({"x-stainless-retry-count": "0"}, None),
        ({"x-stainless-read-timeout": "3"}, None),
        (PYTHON | {"x-stainless-retry-count": "-1"}, None),
        (PYTHON | {"x-stainless-retry-count": "9" * 5000}, None),
        (PYTHON | {"x-stainless-read-timeout": "nan"}, None),
        (PYTHON | {"x-stainless-read-timeout": "inf"}, None),
        (PYTHON | {"x-stainless-read-timeout": "soon"}, None),
        (PYTHON | {"x-stainless-read-timeout": "-3"}, None),
    ],
)
def test_the_headers_of_an_sdk_say_when_its_client_gives_up(
    headers: dict[str, str], gives_up_s: float | None
) -> None:
    made = sdk_call(headers, "t", lambda: "d", 7 * S)
    assert (None if made is None else made.gives_up_ns) == (
        None if gives_up_s is None else round((7 + gives_up_s) * S)
    )
