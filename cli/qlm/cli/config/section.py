"""Base class of the sections of configuration and scenario files."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from qlm.domain.shown import shown


class ConfigSection(BaseModel):
    """Section of a file; unknown keys, infinities and NaN are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _written_path(given: object) -> object:
    """Return a path with `~` as a shell reads it; else it would be a folder of that name.

    Raises:
        ValueError: It cannot be a path, or is empty, which would be the present folder.
    """
    if not isinstance(given, str):
        return given
    if not given or "\0" in given:
        raise ValueError(f"is {shown(given)}; expected a path, such as . for the present folder")
    try:
        return Path(given).expanduser() if given.startswith("~") else given
    except RuntimeError as error:
        expected = "the home folder of a user after ~, or ./~ for a name that begins so"
        raise ValueError(f"is {shown(given)}; expected {expected}") from error


WrittenPath = Annotated[Path, BeforeValidator(_written_path)]
"""Path as people write it into a file."""


def twice(what: str, names: Iterable[str]) -> Iterator[str]:
    """Name what is there more than once."""
    for name, count in Counter(names).items():
        if count > 1:
            yield f"has {shown(name)} twice in {what}; expected each once"


def check_once(what: str, names: Iterable[str]) -> None:
    """Raise ValueError unless each of the names is there once."""
    for mistake in twice(what, names):
        raise ValueError(mistake)
