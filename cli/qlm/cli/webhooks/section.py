"""Section `webhooks` of the configuration: who is notified of the ends of responses and batches."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from qlm.cli.config.addresses import check_address, check_network
from qlm.cli.config.section import ConfigSection, WrittenPath, check_once
from qlm.gateway.webhooks.endpoints import BATCH_EVENTS, RESPONSE_EVENTS
from qlm.gateway.webhooks.limits import WebhookLimits

EndpointName = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EventType = Literal[
    "response.completed",
    "response.incomplete",
    "response.failed",
    "response.cancelled",
    "batch.completed",
    "batch.failed",
    "batch.expired",
    "batch.cancelled",
]

ENDPOINTS_MAX: Final = 100


class EndpointConfig(ConfigSection):
    """A receiver of events.

    Attributes:
        name: Its name in metrics and logs.
        url: Where events are posted to.
        events: Types of the events that it gets.
        tenants: Tenants whose events it gets; without it, all.
        secret_env: Environment variable of gateways with its secret: `whsec_` and 24 to 64 bytes as base64.
            While secrets change, it has both, with a space between them.
        secret_file: File with its secret, instead of a variable.
    """

    name: EndpointName
    url: Annotated[str, Field(max_length=2000)] = Field(repr=False)
    events: tuple[EventType, ...] = Field((*RESPONSE_EVENTS, *BATCH_EVENTS), min_length=1)
    tenants: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] | None = None
    secret_env: VariableName | None = None
    secret_file: WrittenPath | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_secret(cls, plain: Any) -> Any:
        """Refuse a secret in the configuration, without showing it."""
        if isinstance(plain, Mapping) and "secret" in plain:
            raise ValueError("has a secret; expected secret_env or secret_file, which say where it is")
        return plain

    @model_validator(mode="after")
    def _complete(self) -> Self:
        check_address("url", self.url, ("https", "http"))
        if (self.secret_env is None) == (self.secret_file is None):
            raise ValueError("expected either secret_env or secret_file")
        return self


class WebhooksConfig(WebhookLimits):
    """Events of responses in the background and of batches, sent in the form of Standard Webhooks.

    Attributes:
        endpoints: Who gets them.
        allowed_networks: Networks, such as `10.1.0.0/16`, that events may be sent to although they are
            private, loopback or link-local ones.
    """

    endpoints: tuple[EndpointConfig, ...] = Field((), max_length=ENDPOINTS_MAX)
    allowed_networks: tuple[Annotated[str, AfterValidator(check_network)], ...] = ()

    @model_validator(mode="after")
    def _named(self) -> Self:
        check_once("endpoints", [each.name for each in self.endpoints])
        return self
