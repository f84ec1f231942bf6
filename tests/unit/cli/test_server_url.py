"""Addresses of servers that `qlm bench` and `qlm profile` take."""

import pytest

from qlm.cli.server_url import server_url
from qlm.domain.errors import InvalidValueError


@pytest.mark.parametrize(
    "given", ["http://h:8000", "http://h:8000/", "http://h:8000/v1", "http://h:8000/v1/"]
)
def test_an_address_may_end_as_that_of_a_client_of_openai(given: str) -> None:
    assert server_url(given) == "http://h:8000"


@pytest.mark.parametrize("given", ["", "h:8000", "ftp://h", "http://", "http://h:99999", "http://h /v1"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(InvalidValueError, match=r"URL is .*; expected an address such as http://"):
        server_url(given)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(InvalidValueError) as raised:
        server_url("ftp://me:secret@h")
    assert "secret" not in str(raised.value)
