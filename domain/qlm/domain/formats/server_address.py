"""Addresses of servers, as people write them into options and files."""

from urllib.parse import urlsplit


def is_http_address(text: str) -> bool:
    """Return True if a text can be the address of an HTTP server: scheme, host to look up, and no spaces."""
    try:
        parts = urlsplit(text)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return sound and is_host(parts.hostname or "") and not _has_space(text)
    except ValueError:
        return False


def is_host(text: str) -> bool:
    """Return True if a text can be looked up as the name or number of a host."""
    try:
        text.encode("idna")  # fails for empty labels, and those of more than 63 letters
    except ValueError:
        return False
    return bool(text) and not _has_space(text)


def _has_space(text: str) -> bool:
    return any(character <= " " for character in text)
