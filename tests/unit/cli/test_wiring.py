"""Composition: what the configuration says reaches the controller, the gateway and the engines."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from qlm.agents.engines.vllm.client import VllmEngine
from qlm.cli.config.default import emulated_config
from qlm.cli.config.errors import ConfigError
from qlm.cli.config.fleet import InstanceConfig, ModelConfig
from qlm.cli.config.settings import Config, parse_config
from qlm.cli.runtime.engines import model_host
from qlm.cli.runtime.wiring import (
    GIB,
    agent_settings,
    check,
    controller_settings,
    effective_profile,
    fleet,
    gateway_limits,
    group_ids,
    load_profiles,
    model_specs,
    new_gateway_id,
    new_request_id,
    profile_file,
    profile_of,
    store_limits,
)
from qlm.domain.group import RequestClass
from qlm.domain.ids import ModelId
from qlm.gateway.core.limits import LimitsConfig
from qlm.planner.problem import PROMISE_S
from qlm.rct_estimator.host_memory import ENGINE_PROCESS_BYTES
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from qlm.rct_estimator.profiles.file import parse_profile_text
from qlm.rct_estimator.profiles.profile import SourceKind
from qlm.store.core.limits import StoreLimits

SHIPPED = load_profiles(())
PROFILES_FOLDER = Path(inspect.getfile(inspect.unwrap(builtin_profiles))).parent / "shipped"


def configured(**overrides: Any) -> Config:
    raw: dict[str, Any] = {
        "models": [{"id": "mistral-7b"}, {"id": "mine", "engine": "vllm", "path": "weights"}],
        "instances": [
            {"id": "a", "accelerator": "A100", "models": ["mistral-7b", "mine"], "host_memory_gib": 64},
            {"id": "b", "accelerator": "A100", "models": ["mistral-7b"], "host_memory_gib": 32},
            {"id": "c", "accelerator": "A10", "models": ["mistral-7b"], "host_memory_gib": 8},
        ],
    }
    return parse_config(raw | overrides, "tests")


def test_a_generation_config_reaches_gateway_and_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    model = {"id": "mine", "engine": "vllm", "path": str(tmp_path)}
    instance = {"id": "a", "accelerator": "A100", "models": ["mine"]}
    for source in ("auto", "vllm", str(tmp_path)):
        config = configured(models=[model | {"generation_config": source}], instances=[instance])
        assert [spec.generation_config for spec in model_specs(config)] == [source]
    with pytest.raises(ConfigError, match=r"'mine' with the generation_config .*expected auto, vllm, or a"):
        check(config, "tests")
    (tmp_path / "generation_config.json").write_text("{}")
    check(config, "tests")


def test_the_fleet_knows_each_model_on_each_kind_that_serves_it() -> None:
    known = fleet(configured(), SHIPPED)
    assert set(known.profiles) == {("mistral-7b", "A100"), ("mistral-7b", "A10"), ("mine", "A100")}
    assert {kind: set(costs.models) for kind, costs in known.kinds.items()} == {
        "A100": {"mistral-7b", "mine"},
        "A10": {"mistral-7b"},
    }
    assert known.kinds["A100"].host_memory_bytes == 32 * GIB, "of unequal instances the smaller one counts"


def test_swap_costs_come_from_the_profile() -> None:
    known = fleet(configured(), SHIPPED)
    profile = known.profiles[(ModelId("mistral-7b"), "A10")]
    cost = known.kinds["A10"].models[ModelId("mistral-7b")]
    assert (cost.weights_bytes, cost.swap_warm_s) == (profile.weights_bytes, profile.swap_warm_s)
    assert (cost.swap_cold_s, cost.unload_s) == (profile.swap_cold_s, profile.unload_s)
    assert (cost.swap_reload_s, cost.process_bytes) == (profile.swap_reload_s, ENGINE_PROCESS_BYTES)
    assert cost.kv_tokens == profile.kv_tokens > 0


def budget(config: Config, model: str, instance: int) -> int:
    models = {each.id: each for each in config.models}
    profile = effective_profile(config, models[model], config.instances[instance], SHIPPED)
    return profile.batched_tokens_max


def test_the_token_budget_is_the_instances_or_that_of_vllm_or_the_profiles() -> None:
    h100 = {"accelerator": "H100", "models": ["mistral-7b"]}
    instances = [
        {"id": "plain", **h100},
        {"id": "own", **h100, "batched_tokens_max": 4096},
        {"id": "attached", **h100, "url": "http://127.0.0.1:8100"},
        {"id": "real", "accelerator": "A10", "models": ["mine"]},
    ]
    config = configured(instances=instances)
    assert [budget(config, "mistral-7b", n) for n in range(3)] == [8192, 4096, 8192]
    assert budget(config, "mine", 3) == 2048
    config = configured(instances=instances, vllm={"batched_tokens_max": 1024})
    assert [budget(config, "mistral-7b", n) for n in range(3)] == [8192, 4096, 1024]
    assert budget(config, "mine", 3) == 1024
    assert fleet(config, SHIPPED).profiles[(ModelId("mistral-7b"), "H100")].batched_tokens_max == 1024


def test_a_token_budget_has_room_for_a_token_of_each_request_of_the_batch() -> None:
    wide = {"id": "a", "accelerator": "A10", "models": ["mistral-7b"], "seqs_max": 4096}
    assert budget(configured(instances=[wide]), "mistral-7b", 0) == 4096
    config = configured(instances=[wide | {"batched_tokens_max": 512}], models=[{"id": "mistral-7b"}])
    named = r"batched_tokens_max of mistral-7b on a is 512; expected at least its seqs_max, 4096"
    with pytest.raises(ConfigError, match=rf"^qlm\.yaml: {named}$"):
        check(config, "qlm.yaml")


async def test_an_emulated_engine_is_started_with_the_token_budget_of_its_profile(tmp_path: Path) -> None:
    instance = {"id": "h", "accelerator": "H100", "models": ["mistral-7b"]}
    config = configured(instances=[instance], data_dir=str(tmp_path))
    host = model_host(config, config.instances[0], SHIPPED)
    try:
        changed = await host.swap(ModelId("mistral-7b"))
        assert changed.capacity is not None, changed.error
        assert (changed.capacity.batched_tokens_max, changed.capacity.batched_tokens_expected) == (8192, 8192)
        engine = host.engine()
        assert isinstance(engine, VllmEngine)
        assert await engine.batched_tokens_max() == 8192
    finally:
        await host.close()


def on(accelerator: str) -> InstanceConfig:
    return InstanceConfig(id="i", accelerator=accelerator, models=("m",))


def test_a_vllm_model_that_nobody_measured_gets_a_guess_that_says_so() -> None:
    model = ModelConfig(id="mine", engine="vllm", path=Path("weights"), context_tokens=2048)
    guess = profile_of(model, on("H300"), SHIPPED)
    assert (guess.model, guess.accelerator, guess.context_tokens) == ("mine", "H300", 2048)
    assert all(source.kind is SourceKind.DERIVED for source in guess.sources.values())
    assert all("guess" in source.text for source in guess.sources.values())


def test_a_model_may_use_the_profile_of_another() -> None:
    model = ModelConfig(id="my-tune", profile="mistral-7b")
    assert profile_of(model, on("A10"), SHIPPED).model == "mistral-7b"


def test_an_emulated_model_without_a_profile_there_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"'vicuna-13b'.*'TPU'.*A100"):
        profile_of(ModelConfig(id="vicuna-13b"), on("TPU"), SHIPPED)
    with pytest.raises(ConfigError, match=r"'gpt-2'.*mistral-7b"):
        profile_of(ModelConfig(id="gpt-2"), on("A10"), SHIPPED)


def shipped_text(model: str, accelerator: str) -> str:
    return (PROFILES_FOLDER / f"{model}-{accelerator.lower()}.yaml").read_text("utf-8")


def test_a_profile_of_ones_own_wins_over_the_shipped_one(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(shipped_text("mistral-7b", "A10").replace("seqs_max: 256", "seqs_max: 17"), "utf-8")
    profiles = load_profiles((tmp_path,))
    model = ModelConfig(id="mistral-7b")
    assert profile_of(model, on("A10"), profiles).seqs_max == 17
    assert profile_of(model, on("A100"), profiles).seqs_max != 17
    assert profile_file(model, on("A10"), (tmp_path,)) == own
    assert profile_file(model, on("A100"), (tmp_path,)) is None


def test_of_several_files_of_a_profile_plans_and_engines_have_the_same_one(tmp_path: Path) -> None:
    for name, seqs_max in (("a", 11), ("b", 12), ("c", 13)):
        text = shipped_text("mistral-7b", "A10").replace("seqs_max: 256", f"seqs_max: {seqs_max}")
        (tmp_path / f"{name}.yaml").write_text(text, "utf-8")
    model = ModelConfig(id="mistral-7b")
    planned, file = (
        profile_of(model, on("A10"), load_profiles((tmp_path,))),
        profile_file(model, on("A10"), (tmp_path,)),
    )
    assert file is not None
    assert parse_profile_text(file.read_text("utf-8"), "file").seqs_max == planned.seqs_max == 13


def test_a_profile_file_that_is_no_text_or_no_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes("# 80 µs\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"mine\.yaml'; expected a file in UTF-8"):
        load_profiles((tmp_path,))
    file.unlink()
    file.mkdir()
    with pytest.raises(ConfigError, match=r"mine\.yaml: cannot be read: Is a directory"):
        load_profiles((tmp_path,))


def test_a_broken_profile_file_is_named_with_its_key(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(shipped_text("mistral-7b", "A10").replace("seqs_max: 256", "seqs_max: -1"), "utf-8")
    with pytest.raises(ConfigError, match=r"broken\.yaml.*seqs_max.*-1"):
        load_profiles((tmp_path,))


def test_a_profile_folder_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="profiles has 'nowhere'"):
        load_profiles((Path("nowhere"),))


def test_a_model_folder_without_a_tokenizer_is_refused_before_anything_starts(tmp_path: Path) -> None:
    config = configured(
        models=[{"id": "mistral-7b"}, {"id": "mine", "engine": "vllm", "path": str(tmp_path)}]
    )
    with pytest.raises(ConfigError, match=r"qlm\.yaml: models has 'mine'.*tokenizer\.json"):
        check(config, "qlm.yaml")
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    check(config, "qlm.yaml")


def test_emulated_models_use_the_byte_tokenizer_and_vllm_models_their_own() -> None:
    specs = {spec.id: spec.tokenizer for spec in model_specs(configured())}
    assert specs == {"mistral-7b": "byte", "mine": "weights"}


def test_limits_and_objectives_reach_the_gateway() -> None:
    given = {name: 9 if value is None else value + 1 for name, value in LimitsConfig()}
    given |= {"p_met_min": 0.5, "body_bytes_max": 2048, "refuse_without_instance": True}
    given |= {"resumable_streams": True, "slo_steps": 4}
    limits = gateway_limits(configured(limits=given, default_slo={}))
    assert {name: getattr(limits, name) for name in given} == given
    assert limits.default_slo.label() == "batch"
    assert limits.interactive_slo.label() == "ttft-1s-tpot-100ms"


def test_clusters_are_found_unless_the_configuration_gives_them_or_forbids_it() -> None:
    assert controller_settings(configured()).clusters
    assert controller_settings(configured()).cluster_tokens == {}
    models = [{"id": "mistral-7b", "cluster_tokens": []}, {"id": "mine", "cluster_tokens": [100, 8000]}]
    given = controller_settings(configured(models=models, operations={"cluster": False}))
    assert not given.clusters
    assert given.cluster_tokens == {ModelId("mistral-7b"): (), ModelId("mine"): (100, 8000)}
    with pytest.raises(ConfigError, match=r"cluster_tokens is \(9, 9\); expected ascending lengths"):
        configured(models=[{"id": "mistral-7b", "cluster_tokens": [9, 9]}])


@pytest.mark.parametrize("visit", [False, True])
def test_plans_count_a_cold_start_more_than_once_only_if_agents_delay_it(visit: bool) -> None:
    assert controller_settings(configured(operations={"visit": visit})).swap_hysteresis is not visit


def test_the_price_of_promises_reaches_the_controller() -> None:
    prices = {
        name: controller_settings(configured(operations={"promises": name})).promise_s for name in PROMISE_S
    }
    assert prices == PROMISE_S
    assert controller_settings(configured()).promise_s == PROMISE_S["priced"]


def test_ids_do_not_repeat() -> None:
    assert len({new_request_id() for _ in range(100)} | {new_gateway_id() for _ in range(100)}) == 200
    cls = RequestClass(ModelId("m"), "batch")
    first, second = group_ids(), group_ids()
    assert len({maker(cls) for maker in (first, second) for _ in range(10)}) == 20


async def test_engine_hosts_are_made_for_every_instance_without_starting_anything() -> None:
    config = emulated_config({})
    for instance in config.instances:
        host = model_host(config, instance, SHIPPED)
        assert host.engine() is None
        await host.close()


def test_agents_renew_deliveries_before_half_of_the_brokers_acknowledgement_timeout() -> None:
    usual, printed = agent_settings(configured()), agent_settings(configured(broker_ack_timeout_s=60))
    assert (usual.delivery_renewal_s, printed.delivery_renewal_s) == (600.0, 20.0)
    with pytest.raises(ConfigError, match="broker_ack_timeout_s"):
        configured(broker_ack_timeout_s=0)


def test_an_operation_that_is_switched_off_is_off_in_agents_and_controller() -> None:
    config = emulated_config({})
    agent, controller = agent_settings(config), controller_settings(config)
    assert agent.preempts and agent.demotes and not agent.limits_concurrency and agent.prefetches
    assert controller.demotes and controller.balances
    off = {"evict": False, "demote": False, "limit_batch": True, "warm_ahead": False, "balance": False}
    config = emulated_config({"operations": off})
    agent, controller = agent_settings(config), controller_settings(config)
    assert not (agent.preempts or agent.demotes or agent.prefetches)
    assert agent.limits_concurrency
    assert not (controller.demotes or controller.balances)


@pytest.mark.parametrize(
    ("host_memory_gib", "kv_swap", "printed"),
    [
        (20, "auto", ["a: host_kv_gib is 16", "leave 0 GiB of the 20 GiB", "of each engine"]),
        (200, "auto", []),
        (20, "never", []),
    ],
)
def test_whose_kv_blocks_find_no_room_beside_sleeping_weights_is_shown(
    host_memory_gib: int, kv_swap: str, printed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    models = ["mistral-7b", "vicuna-13b"]
    config = configured(
        models=[{"id": model, "kv_swap": kv_swap} for model in models],
        instances=[
            {
                "id": "a",
                "accelerator": "A100",
                "models": models,
                "host_memory_gib": host_memory_gib,
                "host_kv_gib": 16,
            }
        ],
    )
    model_host(config, config.instances[0], SHIPPED)
    assert len(caplog.messages) == bool(printed)
    for words in printed:
        assert words in caplog.messages[0]


def test_results_of_the_configuration_are_the_limits_of_the_shared_state() -> None:
    assert store_limits(emulated_config({})) == StoreLimits()
    limits = store_limits(emulated_config({"results": {"kept_max": 7, "kept_s": 60}}))
    assert (limits.results_max, limits.result_ttl_s) == (7, 60)
