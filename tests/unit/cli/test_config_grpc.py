"""Certificate and key of the gRPC door: read, and refused in one sentence that names the file."""

from pathlib import Path

import pytest

from qlm.cli.config.default import emulated_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.listeners.access import check_listeners
from qlm.cli.config.listeners.grpc import GrpcConfig, TlsConfig, read_tls
from support.certificates import certificate


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


def refusal(cert: Path, key: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_tls(GrpcConfig(tls=TlsConfig(cert=cert, key=key)))
    return str(caught.value)


def test_a_certificate_and_its_key_are_read(pair: tuple[Path, Path]) -> None:
    cert, key = pair
    files = read_tls(GrpcConfig(tls=TlsConfig(cert=cert, key=key)))
    assert files is not None
    assert (files.cert, files.key) == (cert.read_bytes(), key.read_bytes())
    assert read_tls(GrpcConfig()) is None


def test_files_that_cannot_be_read_are_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = pair
    missing = tmp_path / "no.pem"
    assert refusal(missing, key) == (
        f"grpc.tls.cert is '{missing}'; expected a PEM file that can be read (No such file or directory)"
    )
    assert refusal(cert, tmp_path).startswith(f"grpc.tls.key is '{tmp_path}'; expected a PEM file")


def test_files_that_are_no_pair_are_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = pair
    _, other = certificate(tmp_path)
    noise = tmp_path / "noise.pem"
    noise.write_text("nothing of the kind")
    for wrong_cert, wrong_key in ((cert, other), (noise, key), (cert, noise), (key, cert)):
        printed = refusal(wrong_cert, wrong_key)
        assert str(wrong_cert) in printed and str(wrong_key) in printed
        assert "expected a certificate and its unencrypted private key" in printed


def test_the_file_is_named_and_without_the_door_no_certificate_is_needed(tmp_path: Path) -> None:
    tls = {"cert": str(tmp_path / "no.pem"), "key": str(tmp_path / "no.pem")}
    with pytest.raises(ConfigError, match=r"qlm\.yaml: grpc\.tls\.cert is"):
        check_listeners(emulated_config({"grpc": {"tls": tls}}), "qlm.yaml", gateway=True, monitor=False)
    closed = emulated_config({"grpc": {"port": 0, "tls": tls}})
    check_listeners(closed, "qlm.yaml", gateway=True, monitor=False)
