"""The listener of operators: its address, its token, and refusals to start without one."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from qlm.cli.config.default import emulated_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.listeners.access import admin_rules, check_listeners, grpc_rules, monitor_rules
from qlm.cli.config.listeners.admin import AdminConfig
from qlm.cli.config.settings import load_config
from qlm.cli.main import main

TOKEN = "of-the-operators-of-this-test"
MODELS: dict[str, Any] = {
    "models": [{"id": "mistral-7b"}],
    "instances": [{"id": "i", "accelerator": "A100", "models": ["mistral-7b"]}],
}


def written(folder: Path, **sections: Any) -> Path:
    file = folder / "qlm.yaml"
    file.write_text(yaml.safe_dump(MODELS | sections), "utf-8")
    return file


def test_it_is_on_loopback_unless_configured() -> None:
    config = emulated_config({})
    assert (config.admin.host, config.admin.port, config.admin.token) == ("127.0.0.1", 8090, None)
    check_listeners(config, "qlm.yaml", gateway=True, monitor=True)


@pytest.mark.parametrize("section", ["admin", "monitor"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "qlm.example.com"])
def test_beyond_loopback_it_needs_a_token(section: str, host: str) -> None:
    config = emulated_config({section: {"host": host}})
    with pytest.raises(ConfigError) as caught:
        check_listeners(config, "qlm.yaml", gateway=True, monitor=True)
    assert str(caught.value) == (
        f"qlm.yaml: {section}.host is {host!r} without an admin token; "
        "expected a token in QLM_ADMIN_TOKEN, or 127.0.0.1"
    )
    check_listeners(config, "qlm.yaml", gateway=section != "admin", monitor=section != "monitor")
    admin = {"token": TOKEN, **({"host": host} if section == "admin" else {})}
    closed = emulated_config({"monitor": {"host": host}, "admin": admin})
    check_listeners(closed, "qlm.yaml", gateway=True, monitor=True)
    for rules in (admin_rules(closed), grpc_rules(closed), monitor_rules(closed)):
        assert rules.accepts_operator(f"Bearer {TOKEN}") and not rules.accepts_operator("")


def test_without_that_listener_none_needs_a_token() -> None:
    config = emulated_config({"admin": {"host": "0.0.0.0", "port": 0}})
    check_listeners(config, "qlm.yaml", gateway=True, monitor=False)


@pytest.mark.parametrize("words", [["serve"], ["serve", "--admin-port", "9999"]])
def test_a_process_that_would_be_open_to_anyone_does_not_start(words: list[str], tmp_path: Path) -> None:
    file = written(tmp_path, admin={"host": "0.0.0.0"}, data_dir=str(tmp_path / "data"))
    done = CliRunner().invoke(main, [*words, "--config", str(file)], env={"QLM_ADMIN_TOKEN": None})
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert done.output.startswith(f"qlm: {file}: admin.host is '0.0.0.0' without an admin token")
    assert not (tmp_path / "data").exists()


def test_the_token_comes_from_the_environment_before_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, admin={"host": "0.0.0.0", "token": "x" * 16})
    config = load_config(file, {"admin": {"port": 9000}}, {"QLM_ADMIN_TOKEN": TOKEN})
    assert (config.admin.host, config.admin.port, config.admin.token) == ("0.0.0.0", 9000, TOKEN)
    assert load_config(file, {}, {}).admin.token == "x" * 16
    without = written(tmp_path)
    assert load_config(without, {}, {"QLM_ADMIN_TOKEN": TOKEN}).admin == AdminConfig(token=TOKEN)


@pytest.mark.parametrize(
    "token", ["hunter2", "hunter2 " * 4, "h\u00fcnter2" * 4, "hunter2" * 40, "hunter2\n" * 3]
)
def test_a_token_that_is_none_is_refused_without_showing_it(token: str, tmp_path: Path) -> None:
    file = written(tmp_path)
    with pytest.raises(ConfigError, match="is no token; expected 16 to 200 ASCII characters") as caught:
        load_config(file, {}, {"QLM_ADMIN_TOKEN": token})
    assert str(caught.value).startswith(f"{file} with QLM_ADMIN_TOKEN of the environment: admin.token ")
    assert "hunter" not in str(caught.value)


def test_an_empty_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"QLM_ADMIN_TOKEN is empty; expected a value of admin\.token"):
        load_config(written(tmp_path), {}, {"QLM_ADMIN_TOKEN": ""})


def test_the_token_is_not_shown_with_the_configuration() -> None:
    config = emulated_config({"admin": {"token": TOKEN}})
    assert TOKEN not in repr(config)
    assert TOKEN not in repr(admin_rules(config))
