"""Section `admin` of the configuration: the gateway's listener for operators."""

import re
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from qlm.cli.config.addresses import ListeningHost
from qlm.cli.config.listeners.http import HostName
from qlm.cli.config.listeners.urls import local_url
from qlm.cli.config.section import ConfigSection

_TOKEN: Final = re.compile(r"[!-~]{16,200}")


def _check_token(token: object) -> object:
    """Raise ValueError, without showing it, unless it can be a token."""
    if token is not None and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
        raise ValueError("is no token; expected 16 to 200 ASCII characters without spaces")
    return token


class AdminConfig(ConfigSection):
    """Address of the gateway's HTTP listener for operators.

    Attributes:
        host: Address to listen on; beyond loopback, a token is required.
        port: Port of `/admin/v1` and `/metrics`; 0 for no such listener.
        allowed_hosts: Names by which operators may call it (header Host) beside `localhost` and addresses.
            Beyond loopback, any name if none is given.
        token: Token of operators, which QLM_ADMIN_TOKEN replaces: without it, every caller on this machine
            is one. Processes without a gateway want it for their `/metrics`.
    """

    host: ListeningHost = Field("127.0.0.1", min_length=1)
    port: int = Field(8090, ge=0, le=65535, strict=True)
    allowed_hosts: tuple[HostName, ...] = ()
    token: Annotated[str | None, BeforeValidator(_check_token)] = Field(None, repr=False)

    @property
    def url(self) -> str:
        """Address for callers on this machine."""
        return local_url(self.host, self.port)
