"""Base class of the sections of configuration and scenario files."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from qlm.domain.shown import shown


class ConfigSection(BaseModel):
    """Section of a file; unknown keys, infinities and NaN are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def check_once(what: str, names: Sequence[str]) -> None:
    """Raise ValueError unless each of the names is there once."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"has {shown(name)} twice in {what}; expected each once")
