"""How `batching` of an instance starts vLLM."""

from pathlib import Path
from typing import Any

import pytest

from qlm.agents.batching.policies.edf import EarliestDeadlineFirst
from qlm.agents.batching.policies.registry import BY_ABORTS, POLICIES
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.settings import Config, parse_config
from qlm.cli.runtime.engines import _scheduling, hosted_policy, merged_environment, operation_costs
from qlm.cli.runtime.wiring import agent_settings, load_profiles
from qlm.domain.ids import ModelId
from qlm.rct_estimator.profiles.builtin import find_profile
from support.batch_views import Row, view

MODEL = ModelId("llama-3-8b")


def configured(
    tmp_path: Path, *, batching: str | None, url: str | None = None, by: str = "engine", **vllm: Any
) -> Config:
    instance = {"id": "a", "accelerator": "A100", "models": [MODEL], "host_kv_gib": 8.0, "batching": batching}
    instance |= {"url": url} if url else {}
    instance |= {} if by == "engine" else {"batching_by": by}
    return parse_config(
        {
            "models": [{"id": MODEL, "engine": "vllm", "path": str(tmp_path)}],
            "instances": [instance],
            "vllm": vllm,
            "data_dir": str(tmp_path / "data"),
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


@pytest.mark.parametrize("batching", BY_ABORTS)
@pytest.mark.parametrize("url", [None, "http://127.0.0.1:8000"])
def test_by_aborts_an_engine_knows_nothing_of_the_policy(
    tmp_path: Path, batching: str, url: str | None
) -> None:
    config = configured(tmp_path, batching=batching, url=url, by="aborts")
    (instance,) = config.instances
    settings = agent_settings(config, instance)
    assert (settings.batching, settings.hosts_policy) == (batching, batching != "fcfs")
    assert not settings.engines_host_policy
    assert instance.engine_batching is None
    assert _scheduling(config, instance, find_profile(load_profiles(()), MODEL, "A100")) is None
    if url is None:
        assert operation_costs(config, instance, load_profiles(())).kv[MODEL].host_tokens > 0


def test_the_engine_hosts_the_policy_unless_it_is_by_aborts(tmp_path: Path) -> None:
    config = configured(tmp_path, batching="edf")
    (instance,) = config.instances
    settings = agent_settings(config, instance)
    assert settings.engines_host_policy and not settings.hosts_policy
    found = _scheduling(config, instance, find_profile(load_profiles(()), MODEL, "A100"))
    assert found is not None and found.settings.batching == "edf"


@pytest.mark.parametrize("batching", [None, *(name for name in POLICIES if name not in BY_ABORTS)])
def test_other_policies_are_refused_with_aborts(tmp_path: Path, batching: str | None) -> None:
    expected = f"batching_by 'aborts' and the batching {batching!r}; expected one of fcfs, edf, virtual-queue"
    with pytest.raises(ConfigError, match=expected):
        configured(tmp_path, batching=batching, by="aborts")


async def test_a_policy_that_raises_in_an_agent_is_replaced_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (instance,) = configured(tmp_path, batching="edf", by="aborts").instances
    new_policy = await hosted_policy(instance)
    assert new_policy is not None
    policy = new_policy()
    monkeypatch.setattr(EarliestDeadlineFirst, "decide", lambda self, seen: 1 / 0)
    decisions = [policy.decide(view(Row("late", deadline_s=9.0), Row("soon", deadline_s=1.0))) for _ in "ab"]
    assert [each.run for each in decisions] == [("late", "soon")] * 2
    assert [each.message.split(":")[0] for each in caplog.records] == ["the batch policy failed"]
    (plain,) = configured(tmp_path, batching="edf").instances
    assert await hosted_policy(plain) is None
