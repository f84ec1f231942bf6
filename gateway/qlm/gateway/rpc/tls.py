"""What the gRPC door shows its clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Contents of PEM files.

    Attributes:
        cert: The certificate, and those that vouch for it.
        key: Its private key, unencrypted.
    """

    cert: bytes
    key: bytes
