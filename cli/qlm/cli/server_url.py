"""Argument URL of `qlm bench` and `qlm profile`: address of a server with an OpenAI-compatible API."""

from urllib.parse import urlsplit

from qlm.domain.errors import InvalidValueError
from qlm.domain.shown import without_password


def server_url(given: str) -> str:
    """Return the address of a server without `/v1` and slashes at its end, as clients of OpenAI have it.

    Raises:
        InvalidValueError: It is no address of HTTP.
    """
    try:
        parts = urlsplit(given)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or any(character <= " " for character in given):
        raise InvalidValueError("URL", without_password(given), "an address such as http://localhost:8000")
    return given.rstrip("/").removesuffix("/v1").rstrip("/")
