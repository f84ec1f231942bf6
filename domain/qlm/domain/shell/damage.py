"""Damage of stored data, and the consent to go on without what is lost.

A consent names one damage by its code, so a consent that stays in a start script covers no later damage.
"""

import itertools
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

from qlm.domain.errors import DamagedDataError
from qlm.domain.shell.disk import sync

Consent = Callable[[Sequence[str]], None]
"""Called with damage, a sentence each; raises DamagedDataError if it does not cover that damage."""

DAMAGED: Final = ".damaged"
"""End of the name under which a damaged file is kept; further ones end in a number, too."""

_CODE_DIGITS: Final = 8


def code_of(damage: Sequence[str]) -> str:
    """Return the code by which a consent names a damage."""
    return f"{crc32(chr(10).join(damage).encode()):0{_CODE_DIGITS}x}"


def consent_to(codes: Collection[str]) -> Consent:
    """Return the consent to the damage of these codes."""

    def consent(damage: Sequence[str]) -> None:
        code = code_of(damage)
        if damage and code not in codes:
            raise DamagedDataError(
                f"{'; '.join(damage)}; these files were not changed; put back a copy of them, or go on "
                f"without what is lost: start once with --accept-damage {code}"
            )

    return consent


NO_CONSENT: Final = consent_to(())
"""Consent to no damage."""


def kept_as(path: Path, is_same: Callable[[Path], bool] = lambda kept: False) -> Path:
    """Return a path under which to keep a damaged file: what was kept of earlier damage stays.

    Args:
        path: The file.
        is_same: Whether a kept file is of the present damage, and may be written again.
    """
    first = Path(f"{path}{DAMAGED}")
    numbered = (Path(f"{first}.{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([first], numbered) if not each.exists() or is_same(each))


def keep_copy(path: Path, kept: Path) -> None:
    """Copy a damaged file, safe on the disk, before it is changed or deleted.

    Raises:
        OSError: It cannot be copied.
    """
    part = Path(f"{kept}.new")
    try:
        shutil.copyfile(path, part)
        sync(part)
        part.replace(kept)
        sync(kept.parent)
    except OSError:
        part.unlink(missing_ok=True)
        raise
