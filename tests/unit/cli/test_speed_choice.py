"""The profile a model is planned with: from a file, computed from its config.json, or a guess."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qlm.cli.config.errors import ConfigError
from qlm.cli.config.fleet import InstanceConfig, ModelConfig
from qlm.cli.config.settings import parse_config
from qlm.cli.inspect.doctor import examine_profiles
from qlm.cli.main import main
from qlm.cli.runtime.engines import model_host
from qlm.cli.runtime.wiring import load_profiles
from qlm.cli.scenario.file import load_scenario
from qlm.cli.speed.choice import Basis, choose, warn_of_profiles
from qlm.domain.ids import ModelId
from qlm.rct_estimator.profiles.file import parse_profile_text
from support.model_configs import CONFIGS

SHIPPED = load_profiles(())


def weights(folder: Path, name: str = "qwen2.5-7b", **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name] | changes), "utf-8")
    return folder


def vllm(**keys: Any) -> ModelConfig:
    return ModelConfig(**({"id": "mine", "engine": "vllm", "path": Path("nowhere")} | keys))


def on(accelerator: str, gpus: int = 1) -> InstanceConfig:
    return InstanceConfig(id="i", accelerator=accelerator, gpus=gpus, models=("mine",))


def test_the_config_beside_the_weights_gives_a_roofline(tmp_path: Path) -> None:
    found = choose(vllm(path=weights(tmp_path), context_tokens=4096), on("A100"), SHIPPED)
    assert (found.basis, found.warning) == (Basis.ROOFLINE, "")
    assert found.reason == f"computed from {tmp_path}/config.json, iterations within 15%"
    made = found.profile
    assert (made.model, made.accelerator, made.context_tokens) == ("mine", "A100", 4096)
    assert made.kv_bytes_per_token == 57344


@pytest.mark.parametrize("named", ["folder", "file"])
def test_config_names_the_file_or_its_folder(tmp_path: Path, named: str) -> None:
    folder = weights(tmp_path / "elsewhere")
    config = folder if named == "folder" else folder / "config.json"
    assert choose(vllm(config=config), on("L40S"), SHIPPED).basis is Basis.ROOFLINE


def test_a_profile_wins_over_a_config(tmp_path: Path) -> None:
    model = vllm(id="llama-3-8b", path=weights(tmp_path, "llama-3-8b"))
    found = choose(model, on("A100"), SHIPPED)
    assert (found.basis, found.warning) == (Basis.MEASURED, "")
    assert choose(model, on("L40S"), SHIPPED).basis is Basis.ROOFLINE, "none is shipped for that"


def test_the_accelerator_keeps_the_name_of_the_configuration(tmp_path: Path) -> None:
    found = choose(vllm(path=weights(tmp_path)), on("NVIDIA L4"), SHIPPED)
    assert (found.basis, found.profile.accelerator) == (Basis.ROOFLINE, "NVIDIA L4")


@pytest.mark.parametrize(
    ("changes", "accelerator", "reason"),
    [
        ({"hidden_size": 0}, "A100", "its config.json cannot be used: .*config.json: hidden_size is 0"),
        ({}, "H300", "its config.json gives no profile: accelerator is 'H300'; expected one of: A10"),
        ({"layer_types": ["mamba"]}, "A100", r"its config.json cannot be used: .*layer_types is \['mamba'\]"),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": "128"}},
            "A100",
            "its config.json cannot be used: .*config.json: quantization_config.group_size is '128'",
        ),
        ({"num_hidden_layers": 800}, "A10", "its config.json gives no profile: gpus is 1; expected at least"),
    ],
)
def test_a_config_that_is_only_found_leaves_the_guess_and_says_why(
    tmp_path: Path, changes: dict[str, Any], accelerator: str, reason: str
) -> None:
    found = choose(vllm(path=weights(tmp_path, **changes)), on(accelerator), SHIPPED)
    assert found.basis is Basis.GUESSED
    assert found.warning.startswith(f"mine is planned with a guess on {accelerator}, off by a factor of two")
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found.warning)


def test_a_config_that_is_named_must_be_usable(tmp_path: Path) -> None:
    bad = weights(tmp_path, vocab_size="many")
    with pytest.raises(ConfigError, match=r"'mine'.*config\.json: vocab_size is 'many'; expected a whole"):
        choose(vllm(config=bad), on("A100"), SHIPPED)
    with pytest.raises(ConfigError, match=r"'mine'.*missing is 'No such file or directory'"):
        choose(vllm(config=tmp_path / "missing"), on("A100"), SHIPPED)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"'mine'.*binary is .*expected text in UTF-8"):
        choose(vllm(config=tmp_path / "binary"), on("A100"), SHIPPED)


def test_a_config_that_changes_is_read_anew(tmp_path: Path) -> None:
    import os

    file = weights(tmp_path) / "config.json"
    first = choose(vllm(path=tmp_path), on("A100"), SHIPPED).profile
    weights(tmp_path, "llama-3-8b")
    os.utime(file, ns=(1, 1))
    assert choose(vllm(path=tmp_path), on("A100"), SHIPPED).profile.weights_bytes != first.weights_bytes


def test_a_guess_says_its_uncertainty_once(caplog: pytest.LogCaptureFixture) -> None:
    instances = [on("A100"), on("A100"), on("A10")]
    with caplog.at_level(logging.WARNING, "qlm.cli"):
        warn_of_profiles([vllm()], instances, SHIPPED)
    said = [record.getMessage() for record in caplog.records if record.name == "qlm.cli"]
    assert [line.split(",")[0] for line in said] == [
        "mine is planned with a guess on A100",
        "mine is planned with a guess on A10",
    ]
    assert all("factor of two" in line and "no config.json" in line for line in said)


def test_the_profile_of_another_with_other_kv_bytes_is_warned_of(tmp_path: Path) -> None:
    other = choose(vllm(path=weights(tmp_path), profile="llama-3-8b"), on("A100"), SHIPPED)
    assert other.profile.model == "llama-3-8b"
    assert "mine takes 57344 bytes of KV cache per token" in other.warning
    assert "the profile llama-3-8b that it uses says 131072" in other.warning
    tuned = choose(vllm(path=weights(tmp_path, "llama-3-8b"), profile="llama-3-8b"), on("A100"), SHIPPED)
    assert tuned.warning == ""


def test_doctor_tells_what_each_model_is_planned_with(tmp_path: Path) -> None:
    models = [
        vllm(id="llama-3-8b"),
        vllm(id="computed", path=weights(tmp_path)),
        vllm(id="unknown"),
    ]
    instance = InstanceConfig(id="i", accelerator="A100", models=tuple(model.id for model in models))
    found = examine_profiles(models, [instance, instance], SHIPPED)
    assert [(each.check, each.ok, each.detail.split(":")[0]) for each in found] == [
        ("profile of llama-3-8b on A100", True, "profile of llama-3-8b, derived"),
        ("profile of computed on A100", True, "roofline"),
        ("profile of unknown on A100", False, "guessed"),
    ]
    assert "factor of two" in found[2].remedy


def test_doctor_reads_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "qlm.yaml"
    file.write_text(
        f"models: [{{id: mine, engine: vllm, path: {weights(tmp_path / 'w')}}}]\n"
        "instances: [{id: i, accelerator: A100, models: [mine]}]\n",
        "utf-8",
    )
    done = CliRunner().invoke(main, ["doctor", "--url", "http://127.0.0.1:9", "--config", str(file)])
    assert "profile of mine on A100: roofline: computed from" in done.output
    (tmp_path / "w" / "config.json").unlink()
    done = CliRunner().invoke(main, ["doctor", "--url", "http://127.0.0.1:9", "--config", str(file)])
    assert "profile of mine on A100: guessed: it has no profile and no config.json" in done.output


async def test_an_emulated_engine_runs_with_the_computed_profile(tmp_path: Path) -> None:
    raw = {
        "models": [{"id": "org/mine", "config": str(weights(tmp_path / "w")), "context_tokens": 4096}],
        "instances": [{"id": "i", "accelerator": "L40S", "models": ["org/mine"]}],
        "data_dir": str(tmp_path / "data"),
        "emulate": {"time_scale": 0.001},
    }
    config = parse_config(raw, "tests")
    host = model_host(config, config.instances[0], SHIPPED)
    try:
        changed = await host.swap(ModelId("org/mine"))
        assert changed.capacity is not None, changed.error
        made = choose(config.models[0], config.instances[0], SHIPPED).profile
        assert changed.capacity.kv_tokens == pytest.approx(made.kv_tokens, abs=2 * made.block_tokens)
    finally:
        await host.close()


SCENARIO = """
models: [{id: mine, config: weights}]
instances: [{id: i, accelerator: L40S, models: [mine]}]
slo_classes: {chat: {ttft_ms: 1000}}
workload:
  - model: mine
    slo: chat
    arrivals: {gamma: {rate_rps: 1, cv: 1, duration_s: 60}}
    lengths: {prompt_tokens: {uniform: {min: 90, max: 110}}, output_tokens: {uniform: {min: 5, max: 10}}}
"""


def test_a_scenario_simulates_a_model_that_was_never_measured(tmp_path: Path) -> None:
    weights(tmp_path / "weights")
    (tmp_path / "scenario.yaml").write_text(SCENARIO, "utf-8")
    scenario = load_scenario(tmp_path / "scenario.yaml")
    made = scenario.fleet.profiles[ModelId("mine"), "L40S"]
    assert made.kv_bytes_per_token == 57344
    assert scenario.models[0].context_tokens == 32768, "what the model allows"


def test_a_scenario_with_an_unknown_accelerator_is_refused(tmp_path: Path) -> None:
    weights(tmp_path / "weights")
    (tmp_path / "scenario.yaml").write_text(SCENARIO.replace("L40S", "TPU"), "utf-8")
    with pytest.raises(
        ConfigError, match=r"'mine' to be emulated on 'TPU', but its config.json gives no pro"
    ):
        load_scenario(tmp_path / "scenario.yaml")


def test_the_command_writes_the_profile_that_would_be_computed(tmp_path: Path) -> None:
    folder, out = weights(tmp_path / "qwen"), tmp_path / "made" / "qwen.yaml"
    arguments = ["roofline", str(folder), "--accelerator", "H100", "--gpus", "2", "--out", str(out)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "qwen on 2 x H100: 7.615 billion parameters, 15.23 GB of weights" in done.output
    model = ModelConfig(id="qwen", config=folder)
    assert parse_profile_text(out.read_text("utf-8"), "out") == choose(model, on("H100", 2), SHIPPED).profile
    kept = choose(model, on("H100", 2), load_profiles((out.parent,)))
    assert kept.basis is Basis.ROOFLINE, "a computed file is none that was measured"
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "expected a file that does not exist, or --force" in again.output
    assert CliRunner().invoke(main, [*arguments, "--force"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["{}", "--accelerator", "A100"], "qlm: {}/config.json: num_hidden_layers is None; expected a whole"),
        (["{}/none", "--accelerator", "A100"], "qlm: {}/none is 'No such file or directory'; expected a mod"),
        (["{}", "--accelerator", "A1"], "qlm: accelerator is 'A1'; expected one of: A10, A10G"),
    ],
)
def test_the_command_names_what_is_wrong_in_one_line(tmp_path: Path, arguments: list[str], line: str) -> None:
    changes: dict[str, Any] = {} if "A1" in arguments else {"num_hidden_layers": None}
    weights(tmp_path, **changes)
    done = CliRunner().invoke(main, ["roofline", *(each.format(tmp_path) for each in arguments)])
    assert done.exit_code == 2
    assert done.output.startswith(line.format(tmp_path))
    assert done.output.count("\n") == 1
