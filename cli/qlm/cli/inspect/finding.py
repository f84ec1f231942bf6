"""Result of one check of `qlm doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check; `remedy` is what to do if it is not `ok`."""

    check: str
    ok: bool
    detail: str
    remedy: str = ""
