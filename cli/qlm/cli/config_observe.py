"""The sections `monitor` and `tracing` of the configuration file: what a running QLM tells, and where."""

from typing import Final, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qlm.domain.shown import shown, without_password

_PATH: Final = "/v1/traces"


class MonitorConfig(BaseModel):
    """Where a process without a gateway tells of itself: /metrics, /healthz, /readyz.

    Attributes:
        host: Address to listen on.
        port: The first of 64 ports, of which it takes one that is free.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8002, ge=1, le=65535, strict=True)


class TracingConfig(BaseModel):
    """Where spans go.

    Attributes:
        endpoint: Base address of an OpenTelemetry collector (OTLP over HTTP); none: no spans are made.
        sample: Share of the traces begun here that are sent; one that a client began is as it says.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    endpoint: str | None = None
    sample: float = Field(1.0, ge=0, le=1)

    @property
    def traces_endpoint(self) -> str | None:
        """Address for traces; None: no spans are made."""
        return None if self.endpoint is None else self.endpoint.rstrip("/") + _PATH

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.endpoint is not None:
            _check(self.endpoint)
        return self


def _check(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or any(character <= " " for character in endpoint):
        raise ValueError(
            f"has the endpoint {shown(without_password(endpoint))}; expected an address such as http://host:4318"
        )
