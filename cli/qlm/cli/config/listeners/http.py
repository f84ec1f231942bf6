"""Section `http` of the configuration: the listener of the OpenAI API."""

from typing import Annotated, Literal

from pydantic import Field

from qlm.cli.config.addresses import ListeningHost
from qlm.cli.config.section import ConfigSection

HostName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9.:_-]+$")]
Origin = Annotated[str, Field(max_length=300, pattern=r"^[a-z][a-z0-9+.-]*://[^/\s*?#@]+$")]


class HttpConfig(ConfigSection):
    """Address of the gateway's HTTP listener.

    Attributes:
        host: Address to listen on; `0.0.0.0` for all of the machine's.
        port: Port of the OpenAI API.
        allowed_hosts: Names by which clients may call it (header Host) beside `localhost` and addresses.
            Beyond loopback, any name if none is given.
        allowed_origins: Origins of web pages that may call it (header Origin), such as
            `https://chat.example.com`; pages of all others are refused.
        behind_proxy: Only a proxy that checks clients, or a network policy, lets clients reach this listener
            and that of gRPC. Without it, a gateway that listens beyond loopback warns, unless clients need
            keys.
        api_keys: `required`: clients of this listener and of that of gRPC need an API key (`qlm keys`), whose
            tenant all their requests have; `off`: none is looked at, and clients name their tenants
            themselves.
        workers: Processes beside that of `qlm serve` that serve this listener, which must be on the embedded
            queue; 0 for none: it serves it itself.
    """

    host: ListeningHost = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=1, le=65535, strict=True)
    allowed_hosts: tuple[HostName, ...] = ()
    allowed_origins: tuple[Origin, ...] = ()
    behind_proxy: bool = False
    api_keys: Literal["off", "required"] = "off"
    workers: int = Field(0, ge=0, le=64)

    @property
    def keys_required(self) -> bool:
        """True if clients need an API key."""
        return self.api_keys == "required"
