"""Base class of the sections of configuration and scenario files."""

from pydantic import BaseModel, ConfigDict


class ConfigSection(BaseModel):
    """Section of a file; unknown keys, infinities and NaN are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
