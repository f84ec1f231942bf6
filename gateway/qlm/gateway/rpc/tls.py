"""Certificate and key of the gRPC listener."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Contents of the PEM files.

    Attributes:
        cert: The certificate chain.
        key: Its private key, unencrypted.
    """

    cert: bytes
    key: bytes
