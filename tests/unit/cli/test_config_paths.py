"""Paths in the configuration: an empty one is refused, and `~` is the home folder."""

from pathlib import Path
from typing import Any

import pytest

from qlm.cli.config.default import emulated_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config


def config_with(*steps: str, path: str) -> Config:
    inner: Any = path
    for step in reversed(steps):
        inner = [inner] if step == "0" else {step: inner}
    return emulated_config(inner)


@pytest.mark.parametrize(
    "steps",
    [
        ("data_dir",),
        ("files", "dir"),
        ("profiles", "0"),
        ("vllm", "python"),
        ("vllm", "pythonpath"),
        ("grpc", "tls", "cert"),
        ("grpc", "tls", "key"),
        ("models", "0", "path"),
        ("models", "0", "config"),
        ("models", "0", "adapters", "0", "path"),
        ("webhooks", "endpoints", "0", "secret_file"),
    ],
)
@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_path_is_refused(steps: tuple[str, ...], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_with(*steps, path=path)
    expected = f"{'.'.join(steps)} is {path!r}; expected a path, such as . for the present folder"
    assert expected in str(caught.value)


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert config_with("data_dir", path="~/qlm").data_dir == Path("/home/someone/qlm")
    assert config_with("files", "dir", path="~").files.dir == Path("/home/someone")
    assert config_with("data_dir", path="./~/qlm").data_dir == Path("~/qlm")


def test_a_tilde_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data_dir is '~nobody here'; expected the home folder of a user"):
        config_with("data_dir", path="~nobody here")
