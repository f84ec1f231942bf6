"""Argument URL of `qlm bench` and `qlm profile`: address of a server with an OpenAI-compatible API."""

from qlm.domain.errors import InvalidValueError
from qlm.domain.formats.server_address import is_http_address
from qlm.domain.shown import without_password


def server_url(given: str) -> str:
    """Return the address of a server without `/v1` and slashes at its end, as clients of OpenAI have it.

    Raises:
        InvalidValueError: It is no address of HTTP.
    """
    if not is_http_address(given):
        raise InvalidValueError("URL", without_password(given), "an address such as http://localhost:8000")
    return given.rstrip("/").removesuffix("/v1").rstrip("/")
