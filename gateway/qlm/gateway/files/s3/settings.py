"""Address of the bucket: section `files.s3` of the configuration."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

COPY_BYTES_MAX: Final = 5 * 1024**3
"""Largest object that S3 copies at once, as the input of a batch is."""

HttpUrl = Annotated[str, Field(pattern=r"^https?://[^/?#@\s]+/?$")]


class S3Settings(BaseModel):
    """A bucket of S3-compatible storage for files and batches. Credentials are no part of the configuration.

    Attributes:
        bucket: Its name.
        prefix: What all keys begin with; another prefix is another place.
        endpoint_url: URL of the server; without it, AWS.
        region: Its region; without it, as the environment says.
        timeout_s: Time in which a call ends that gets no answer, its further tries included, seconds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    bucket: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]$")
    prefix: str = Field("", max_length=512, pattern=r"^([^/\s]+/)*$")
    endpoint_url: HttpUrl | None = None
    region: str | None = Field(None, pattern=r"^[A-Za-z0-9-]{1,64}$")
    timeout_s: float = Field(10.0, ge=0.1, le=300)
