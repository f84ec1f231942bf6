"""Base class of the sections of configuration and scenario files."""

from collections import Counter
from collections.abc import Iterable, Iterator

from pydantic import BaseModel, ConfigDict

from qlm.domain.shown import shown


class ConfigSection(BaseModel):
    """Section of a file; unknown keys, infinities and NaN are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def twice(what: str, names: Iterable[str]) -> Iterator[str]:
    """Name what is there more than once."""
    for name, count in Counter(names).items():
        if count > 1:
            yield f"has {shown(name)} twice in {what}; expected each once"


def check_once(what: str, names: Iterable[str]) -> None:
    """Raise ValueError unless each of the names is there once."""
    for mistake in twice(what, names):
        raise ValueError(mistake)
