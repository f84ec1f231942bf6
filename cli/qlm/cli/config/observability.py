"""Sections `monitor` and `tracing` of the configuration: metrics, health and spans."""

from typing import Final, Self

from pydantic import Field, model_validator

from qlm.cli.config.addresses import ListeningHost
from qlm.cli.config.section import ConfigSection
from qlm.domain.formats.server_address import is_http_address
from qlm.domain.shown import shown, without_password

_PATH: Final = "/v1/traces"


class MonitorConfig(ConfigSection):
    """Address of /metrics, /healthz and /readyz in a process without a gateway.

    Attributes:
        host: Address to listen on.
        port: First port to try; the process takes the first free one of 64.
    """

    host: ListeningHost = Field("127.0.0.1", min_length=1)
    port: int = Field(8002, ge=1, le=65535, strict=True)


class TracingConfig(ConfigSection):
    """Export of OpenTelemetry spans.

    Attributes:
        endpoint: Base address of an OpenTelemetry collector (OTLP over HTTP); without it, no spans are made.
        sample: Share of the traces begun here that are sent; a trace begun by a client follows its flag.
    """

    endpoint: str | None = None
    sample: float = Field(1.0, ge=0, le=1)

    @property
    def traces_endpoint(self) -> str | None:
        """Address for traces; None if no spans are made."""
        return None if self.endpoint is None else self.endpoint.rstrip("/") + _PATH

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.endpoint is not None:
            _check(self.endpoint)
        return self


def _check(endpoint: str) -> None:
    if not is_http_address(endpoint):
        raise ValueError(
            f"has the endpoint {shown(without_password(endpoint))}; expected an address such as http://host:4318"
        )
