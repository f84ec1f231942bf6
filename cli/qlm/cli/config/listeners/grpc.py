"""Section `grpc` of the configuration: the gateway's gRPC listener."""

import ssl
from pathlib import Path

from pydantic import Field

from qlm.cli.config.addresses import ListeningHost
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.section import ConfigSection, WrittenPath
from qlm.domain.shown import shown
from qlm.gateway.rpc.tls import TlsFiles


class TlsConfig(ConfigSection):
    """TLS certificate of the gRPC listener.

    Attributes:
        cert: PEM file with the certificate and its chain.
        key: PEM file with its private key, unencrypted.
    """

    cert: WrittenPath
    key: WrittenPath


class GrpcConfig(ConfigSection):
    """Address of the gateway's gRPC listener.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 for no gRPC.
        tls: Certificate and key; without it, plain HTTP/2.
    """

    host: ListeningHost = Field("127.0.0.1", min_length=1)
    port: int = Field(8001, ge=0, le=65535, strict=True)
    tls: TlsConfig | None = None


def read_tls(config: GrpcConfig) -> TlsFiles | None:
    """Read certificate and key; raise ConfigError if a file cannot be read, or the two do not match."""
    if config.tls is None:
        return None
    files = TlsFiles(cert=_read("cert", config.tls.cert), key=_read("key", config.tls.key))
    try:
        # An empty password: OpenSSL would otherwise prompt for one, and a server has no terminal.
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
