"""The section `grpc` of the configuration file: the gateway's second door."""

import ssl
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from qlm.cli.config_errors import ConfigError
from qlm.domain.shown import shown
from qlm.gateway.rpc.tls import TlsFiles


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsConfig(_Section):
    """What the door shows its clients.

    Attributes:
        cert: PEM file with the certificate, and those that vouch for it.
        key: PEM file with its private key, unencrypted.
    """

    cert: Path
    key: Path


class GrpcConfig(_Section):
    """Where the gateway listens for gRPC.

    Attributes:
        host: Address.
        port: 0 for no such door.
        tls: Certificate and key; none for plain HTTP/2.
    """

    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8001, ge=0, le=65535, strict=True)
    tls: TlsConfig | None = None


def read_tls(config: GrpcConfig) -> TlsFiles | None:
    """Read certificate and key.

    Raises:
        ConfigError: A file cannot be read, or the two are no pair.
    """
    if config.tls is None:
        return None
    files = TlsFiles(cert=_read("cert", config.tls.cert), key=_read("key", config.tls.key))
    try:
        # A password is never asked for: nobody sits before a server.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            config.tls.cert, config.tls.key, password=lambda: b""
        )
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        raise ConfigError(
            f"grpc.tls has the cert {shown(str(config.tls.cert))} and the key {shown(str(config.tls.key))}; "
            f"expected a certificate and its unencrypted private key, both PEM ({why})"
        ) from error
    return files


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"grpc.tls.{name} is {shown(str(path))}; expected a PEM file that can be read ({why})"
        ) from error
