"""Address of the bucket: section `files.s3` of the configuration."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from qlm.domain.formats.server_address import is_http_address
from qlm.domain.shown import shown, without_password

COPY_BYTES_MAX: Final = 5 * 1024**3
"""Largest object that S3 copies at once, as the input of a batch is."""

_ENDPOINT: Final = r"^https?://[^/?#@\s]+/?$"


def _check_endpoint(text: str) -> str:
    """Return the address of a server without anything beside its host and port.

    Raises:
        ValueError: It is none. The message has no password, which a pattern of pydantic would show.
    """
    if not (re.fullmatch(_ENDPOINT, text) and is_http_address(text)):
        expected = "an address such as https://minio.example.org:9000, without user, path and query"
        raise ValueError(f"is {shown(without_password(text))}; expected {expected}")
    return text


Endpoint = Annotated[str, AfterValidator(_check_endpoint), Field(json_schema_extra={"pattern": _ENDPOINT})]


class S3Settings(BaseModel):
    """A bucket of S3-compatible storage for files and batches. Credentials are no part of the configuration.

    Attributes:
        bucket: Its name.
        prefix: What all keys begin with; another prefix is another place.
        endpoint_url: Address of the server, without user, path and query; without it, AWS.
        region: Its region; without it, as the environment says.
        timeout_s: Time in which a call ends that gets no answer, its further tries included, seconds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    bucket: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]$")
    prefix: str = Field("", max_length=512, pattern=r"^([^/\s]+/)*$")
    endpoint_url: Endpoint | None = None
    region: str | None = Field(None, pattern=r"^[A-Za-z0-9-]{1,64}$")
    timeout_s: float = Field(10.0, ge=0.1, le=300)
