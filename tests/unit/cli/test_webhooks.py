"""Section `webhooks` of the configuration, and the secrets of its endpoints."""

from pathlib import Path
from typing import Any

import pytest

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import parse_config
from qlm.cli.starter.built_in import EMULATED
from qlm.cli.webhooks.secrets import read_webhooks
from qlm.cli.webhooks.section import WebhooksConfig
from support.webhooks import KEY, SECRET

HOOK = {"name": "reports", "url": "https://reports.example.com/hook", "secret_env": "REPORTS"}


def parsed(**section: Any) -> WebhooksConfig:
    return parse_config(EMULATED | {"webhooks": section}, "qlm.yaml").webhooks


def test_an_endpoint_has_its_secret_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n{SECRET}\n")
    other = {"name": "other", "url": "http://10.1.2.3/", "secret_file": str(file), "tenants": ["a"]}
    config = parsed(endpoints=[HOOK, other], allowed_networks=["10.0.0.0/8"], timeout_s=3)
    webhooks = read_webhooks(config, {"REPORTS": SECRET})
    assert webhooks is not None
    first, second = webhooks.endpoints
    assert (first.secrets, second.secrets) == ((KEY,), (KEY, KEY))
    assert len(first.events) == 8 and second.tenants == frozenset(("a",))
    assert [str(each) for each in webhooks.networks] == ["10.0.0.0/8"]
    assert webhooks.limits.timeout_s == 3
    assert SECRET not in repr(webhooks) and SECRET not in repr(config)


def test_without_endpoints_there_are_no_webhooks() -> None:
    assert read_webhooks(parsed(), {}) is None


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({}, "REPORTS is not set; expected the secret of the webhook reports"),
        ({"REPORTS": " "}, "REPORTS of the environment is empty"),
        ({"REPORTS": "whsec_c2hvcnQ="}, "REPORTS of the environment is a secret of 5 bytes"),
        ({"REPORTS": f"{SECRET} confidential"}, "REPORTS of the environment is no secret"),
    ],
)
def test_a_wrong_secret_is_one_error_that_does_not_show_it(environment: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        read_webhooks(parsed(endpoints=[HOOK]), environment)
    assert not any(each in str(caught.value) for each in ("confidential", "c2hvcnQ", SECRET))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    hook = {"name": "a", "url": "https://a.example/", "secret_file": str(tmp_path / "none")}
    with pytest.raises(ConfigError, match="none' of the webhook a cannot be read: No such file"):
        read_webhooks(parsed(endpoints=[hook]))


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ({"endpoints": [HOOK, HOOK]}, "has 'reports' twice"),
        ({"endpoints": [HOOK | {"url": "ftp://a"}]}, "expected an address such as https://"),
        ({"endpoints": [HOOK | {"url": "https://a..b/x"}]}, "expected an address such as https://"),
        ({"endpoints": [HOOK | {"url": f"https://{'a' * 64}.example.com/"}]}, "expected an address such as"),
        ({"endpoints": [HOOK | {"events": ["response.ended"]}]}, "response.ended"),
        ({"endpoints": [HOOK | {"events": []}]}, "events"),
        ({"endpoints": [HOOK | {"secret_file": "a"}]}, "either secret_env or secret_file"),
        ({"endpoints": [{"name": "a", "url": "https://a"}]}, "either secret_env or secret_file"),
        ({"endpoints": [HOOK | {"secret": SECRET}]}, "has a secret; expected secret_env or secret_file"),
        ({"allowed_networks": ["10.1.2.3/8"]}, "expected a network such as 10.1.0.0/16"),
        ({"retry_for_s": 0}, "retry_for_s"),
    ],
)
def test_mistakes_are_named(section: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error) as caught:
        parsed(**section)
    assert SECRET not in str(caught.value)
