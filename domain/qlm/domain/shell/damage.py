"""Damage of stored data, and the consent to go on without what is lost.

A consent names one damage by its code, so a consent that stays in a start script covers no later damage.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final
from zlib import crc32

from qlm.domain.errors import DamagedDataError

Consent = Callable[[Sequence[str]], None]
"""Called with damage, a sentence each; raises DamagedDataError if it does not cover that damage."""

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
