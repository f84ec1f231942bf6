"""Profiles by name: a file, or one of the shipped."""

import re
from pathlib import Path
from typing import Final

from qlm.domain.errors import InvalidValueError
from qlm.rct_estimator.profiles.builtin import builtin_profiles, find_profile
from qlm.rct_estimator.profiles.file import parse_profile_text
from qlm.rct_estimator.profiles.profile import Profile

_SHIPPED: Final = re.compile(r"\s*(?P<model>\S+)\s+on\s+(?:(?P<gpus>[1-9]\d{0,3})\s*x\s+)?(?P<kind>\S+)\s*")


def named_profile(name: str) -> Profile:
    """Load a profile: a file, or the shipped one of `MODEL on GPUS x ACCELERATOR`.

    Raises:
        InvalidValueError: There is none, or the file holds no profile.
    """
    path, shipped = Path(name), _SHIPPED.fullmatch(name)
    if shipped is not None and not path.exists():
        return find_profile(builtin_profiles(), shipped["model"], shipped["kind"], int(shipped["gpus"] or 1))
    try:
        return read_profile(path)
    except OSError as error:
        expected = f"a file that can be read ({error.strerror}), or MODEL on GPUS x ACCELERATOR"
        raise InvalidValueError("profile", name, expected) from None


def read_profile(path: Path) -> Profile:
    """Read a profile file.

    Raises:
        InvalidValueError: It holds no profile; names file and key.
        OSError: It cannot be read.
    """
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise InvalidValueError("profile", str(path), "a file in UTF-8") from None
    return parse_profile_text(text, str(path))
