"""How `batching` of an instance starts vLLM."""

from pathlib import Path
from typing import Any

import pytest

from qlm.agents.batching.policies.registry import POLICIES
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config, parse_config
from qlm.cli.runtime.engines import merged_environment, operation_costs
from qlm.cli.runtime.wiring import load_profiles
from qlm.domain.ids import ModelId

MODEL = ModelId("llama-3-8b")


def configured(tmp_path: Path, *, batching: str | None, url: str | None = None, **vllm: Any) -> Config:
    instance = {"id": "a", "accelerator": "A100", "models": [MODEL], "host_kv_gib": 8.0, "batching": batching}
    instance |= {"url": url} if url else {}
    return parse_config(
        {
            "models": [{"id": MODEL, "engine": "vllm", "path": str(tmp_path)}],
            "instances": [instance],
            "vllm": vllm,
        },
        "test",
    )


@pytest.mark.parametrize(
    ("batching", "asked", "offloads"), [(None, False, True), ("fcfs", False, False), ("fcfs", True, True)]
)
def test_with_qlms_scheduler_kv_blocks_are_offloaded_only_if_asked_for(
    tmp_path: Path, batching: str | None, asked: bool, offloads: bool
) -> None:
    config = configured(tmp_path, batching=batching, batching_offloading=asked)
    costs = operation_costs(config, config.instances[0], load_profiles(()))
    assert (costs.kv[MODEL].host_tokens > 0) == offloads


@pytest.mark.parametrize("batching", POLICIES)
@pytest.mark.parametrize("url", [None, "http://127.0.0.1:8000"])
def test_every_batch_policy_is_accepted_for_vllm(tmp_path: Path, batching: str, url: str | None) -> None:
    config = configured(tmp_path, batching=batching, url=url)
    assert config.instances[0].batching == batching


def test_an_instances_own_python_path_does_not_hide_the_scheduler() -> None:
    merged = merged_environment(
        {"PYTHONPATH": "/patches"}, {"PYTHONPATH": "/scheduler", "A": "1"}, {"PYTHONPATH": "/mine", "A": "2"}
    )
    assert merged == {"PYTHONPATH": "/patches:/scheduler:/mine", "A": "2"}
    assert merged_environment({}, {"A": "1"}) == {"A": "1"}


def test_an_unknown_batch_policy_gets_the_list_of_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'nosuch'; expected one of fcfs, "):
        configured(tmp_path, batching="nosuch")
