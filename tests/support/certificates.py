"""A certificate for localhost that signs itself, made with openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate and its key; skip the test on a machine without openssl."""
    if (openssl := shutil.which("openssl")) is None:
        pytest.skip("there is no openssl to make a certificate with")
    cert, key = folder / "cert.pem", folder / "key.pem"
    argv = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*argv, "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=60)
    return cert, key
