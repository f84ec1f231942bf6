"""Damage of files: flipped bytes, and the consent to any of it."""

from collections.abc import Sequence
from pathlib import Path


def any_damage(damage: Sequence[str]) -> None:
    """Consent to any damage."""


def flip(path: Path, at: int, mask: int = 0x10) -> None:
    """Flip bits of one byte of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (before,) = file.read(1)
        file.seek(at)
        file.write(bytes([before ^ mask]))
