"""The files of the live page, read once. They have no data of the cluster, so anyone may load them."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

PAGE: Final = "/ui"

_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
"""Headers of each file: the page runs its own scripts only, and no other page may show it."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file with its headers."""

    content: bytes
    headers: Mapping[str, str]


@cache
def page_files() -> Mapping[str, PageFile]:
    """Return the files by the paths under which they are served."""
    found = {}
    for each in files("qlm.gateway.http.page").joinpath("static").iterdir():
        stem, _, suffix = each.name.rpartition(".")
        content = each.read_bytes()
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        path = PAGE if stem == "index" else f"{PAGE}/{each.name}"
        found[path] = PageFile(content, {**HEADERS, "content-type": _TYPES[suffix], "etag": etag})
    return found


def open_paths() -> frozenset[str]:
    """Return the paths that anyone may load: those of the files, and the one that leads to the page."""
    return frozenset({f"{PAGE}/", *page_files()})
