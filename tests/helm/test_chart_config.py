"""What the section `config` of the values may say beside what the chart writes itself."""

import json
import re

import pytest

from qlm.cli.config.settings import Config
from support.chart import ROOT, RefusedError, config_of, rendered

PAGE = ROOT / "docs/deploy-kubernetes.md"


def test_settings_that_the_page_names_are_taken() -> None:
    said = re.findall(r"`(config\.[a-z_.]+): (\w+)`", PAGE.read_text("utf-8"))
    assert ("config.http.api_keys", "required") in said
    config = Config(**config_of(rendered("emulated", *(f"{key}={json.dumps(value)}" for key, value in said))))
    assert config.http.keys_required
    assert config.http.host == "0.0.0.0"


def test_names_and_origins_of_the_listeners_are_taken() -> None:
    http = {"allowed_hosts": ["llm.example.com"], "allowed_origins": ["https://chat.example.com"]}
    admin = {"allowed_hosts": ["operators.example.com"]}
    config = Config(**config_of(rendered("emulated", f"config={json.dumps({'http': http, 'admin': admin})}")))
    assert config.http.allowed_hosts == ("llm.example.com",)
    assert config.http.allowed_origins == ("https://chat.example.com",)
    assert config.admin.allowed_hosts == ("operators.example.com",)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("http", "port", 80), ("http", "behind_proxy", True), ("admin", "host", "127.0.0.1")],
)
def test_what_the_chart_writes_of_the_listeners_is_refused(section: str, key: str, value: object) -> None:
    with pytest.raises(RefusedError, match=f"config.{section}: Additional property {key} is not allowed"):
        rendered("emulated", f"config={json.dumps({section: {key: value}})}")
