"""Which texts can be the address of an HTTP server."""

import pytest

from qlm.domain.formats.server_address import is_http_address


@pytest.mark.parametrize("text", ["http://localhost:8000", "https://u:p@host/v1/", "http://[::1]:1"])
def test_addresses(text: str) -> None:
    assert is_http_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:8000",
        "ftp://h",
        "http://",
        "http://h:0",
        "http://h:x",
        "http://[::1",
        "http://a b",
        "http://a..b:1",
        f"http://{64 * 'a'}:1",
    ],
)
def test_what_is_none(text: str) -> None:
    assert not is_http_address(text)
