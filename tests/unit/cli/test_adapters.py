"""Adapters in the configuration: they reach the gateway and the engines, and are no models in plans."""

import json
from pathlib import Path
from typing import Any

import pytest

from qlm.agents.engines.adapters import Adapter
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config, parse_config
from qlm.cli.runtime.wiring import (
    check,
    effective_profile,
    fleet,
    launched_adapters,
    load_profiles,
    model_specs,
)

SHIPPED = load_profiles(())


def configured(
    adapters: list[dict[str, Any]], *, served: str = "mistral-7b", url: str | None = None, **model: Any
) -> Config:
    raw = {
        "models": [{"id": "mistral-7b", "adapters": adapters, **model}],
        "instances": [{"id": "a", "accelerator": "A100", "models": [served], "url": url}],
    }
    return parse_config(raw, "tests")


def adapter_in(folder: Path, settings: str) -> str:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(settings)
    return str(folder)


def test_a_gateway_knows_adapters_and_plans_do_not() -> None:
    with_one, without = configured([{"id": "poet"}]), configured([])
    assert [spec.adapters for spec in model_specs(with_one)] == [("poet",)]
    assert fleet(with_one, SHIPPED) == fleet(without, SHIPPED)


def test_an_adapter_is_no_model_of_an_instance() -> None:
    with pytest.raises(ConfigError, match=r"has the model 'poet' in instance a; expected one of \['mistral"):
        configured([{"id": "poet"}], served="poet")


def test_vllm_is_started_with_adapters_and_their_ranks(tmp_path: Path) -> None:
    path = adapter_in(tmp_path / "poet", json.dumps({"r": 32, "lora_alpha": 16}))
    config = configured([{"id": "poet", "path": path}], engine="vllm", path=str(tmp_path))
    assert launched_adapters(config.models[0]) == (Adapter("poet", Path(path), 32),)


@pytest.mark.parametrize("settings", ["{", "[]", "{}", '{"r": "8"}', '{"r": 0}'])
def test_a_folder_without_usable_settings_is_named_at_the_start(tmp_path: Path, settings: str) -> None:
    (tmp_path / "tokenizer.json").touch()
    path = adapter_in(tmp_path / "poet", settings)
    adapters = [{"id": name, "path": path} for name in ("poet", "clerk")]
    config = configured(adapters, engine="vllm", path=str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        check(config, "file")
    lines = str(caught.value).splitlines()
    assert [line.partition(" is ")[0] for line in lines] == [
        "file: the path of the adapter poet",
        "file: the path of the adapter clerk",
    ]
    assert all("adapter_config.json" in line for line in lines)
    check(config, "file", instances=())  # a process that starts no engine of the model reads no adapter
    check(configured(adapters), "file")  # nor does an emulated engine


def test_only_an_engine_that_is_attached_to_needs_no_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has the adapter 'poet' of mistral-7b without path"):
        configured([{"id": "poet"}], engine="vllm", path=str(tmp_path))
    url = "http://127.0.0.1:8100"
    attached = configured([{"id": "poet"}], engine="vllm", path=str(tmp_path), url=url)
    assert model_specs(attached)[0].adapters == ("poet",)


def test_weights_of_vllm_with_adapters_are_never_dropped_while_it_sleeps(tmp_path: Path) -> None:
    """A reload brings the model's weights back, and not those of its adapters."""
    path = adapter_in(tmp_path / "poet", '{"r": 8}')
    for adapters, engine in (([{"id": "poet", "path": path}], "vllm"), ([{"id": "poet"}], "emulated")):
        config = configured(adapters, engine=engine, path=str(tmp_path))
        profile = effective_profile(config, config.models[0], config.instances[0], SHIPPED)
        assert (profile.swap_reload_s == profile.swap_cold_s) == (engine == "vllm")
