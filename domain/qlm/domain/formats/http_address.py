"""Addresses of HTTP servers, as people write them into options and files."""

from urllib.parse import urlsplit


def is_http_address(text: str) -> bool:
    """Return True if a text can be the address of an HTTP server: scheme, host to look up, and no spaces."""
    try:
        parts = urlsplit(text)
        (parts.hostname or "").encode("idna")  # fails for empty labels, and those of more than 63 letters
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return sound and not any(character <= " " for character in text)
