"""`qlm init` writes a commented file that is a valid configuration, whatever it is asked for."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from qlm.cli.config.default import emulated_config
from qlm.cli.config.settings import Config, load_config, parse_config
from qlm.cli.main import main
from qlm.cli.starter.text import StarterInstance, StarterModel, gpus_in, starter_text
from qlm.domain.slo import BatchSlo, DeadlineSlo, ReadingSlo
from qlm.rct_estimator.profiles.builtin import builtin_profiles
from support.full_disk import full_disk

KNOWN = [each.accelerator for each in builtin_profiles()]
LISTING = """\
0, NVIDIA A100-SXM4-80GB
1, NVIDIA H100 80GB HBM3
2, NVIDIA A10
3, NVIDIA GeForce RTX 4090
4, NVIDIA A100-SXM4-80GB
"""


def init(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, words)])


def test_without_options_it_is_what_serve_has_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "qlm.yaml"
    done = init(file)
    assert (done.exit_code, done.output) == (0, f"written to {file}: qlm serve --config {file}\n")
    config = load_config(file, {}, {})
    own = emulated_config({})
    assert [(each.accelerator, each.models) for each in config.instances] == [
        (each.accelerator, each.models) for each in own.instances
    ]
    assert [each.id for each in config.models] == [each.id for each in own.models]
    assert [each.context_tokens for each in config.models] == [each.context_tokens for each in own.models]
    assert {each.engine for each in config.models} == {"emulated"}
    assert config.default_slo == Config.model_fields["default_slo"].default
    assert init().output == file.read_text("utf-8")


def test_a_dash_is_standard_output_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert init("-").output == init().output
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_former_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "qlm.yaml"
    file.write_text("mine: true\n", "utf-8")
    with full_disk():
        done = init(file, "--force")
    assert (done.exit_code, done.output) == (1, f"qlm: {file}: File too large\n")
    assert file.read_text("utf-8") == "mine: true\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_replaced_keeps_its_mode_and_the_link_to_it(tmp_path: Path) -> None:
    file, link = tmp_path / "secret.yaml", tmp_path / "qlm.yaml"
    file.touch(mode=0o600)
    link.symlink_to(file)
    assert init(link, "--force").exit_code == 0
    assert link.is_symlink() and file.read_text("utf-8") == init().output
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("--model", "mistral-7", "--accelerator", "A10"), "mistral-7b"),
        (("--model", "mistral-7b", "--accelerator", "A1O"), "A10"),
        (("--model", "mistral-7b", "--accelerator", "a100"), "A100"),
    ],
)
def test_what_could_not_be_served_is_not_written(words: tuple[str, ...], meant: str, tmp_path: Path) -> None:
    file = tmp_path / "qlm.yaml"
    done = init(*words, file)
    assert (done.exit_code, file.exists()) == (2, False)
    assert done.stderr.rstrip().endswith(f"; did you mean {meant}?")


@pytest.mark.parametrize("folder", ["/data/modèle", "/data/模型 1", "/data/\N{GRINNING FACE}", '/data/a"b'])
def test_a_folder_of_any_name_is_read_as_it_was_given(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "qlm.yaml"
    assert init("--model", f"mine={folder}", "--accelerator", "A100", file).exit_code == 0
    assert load_config(file, {}, {}).models[0].path == Path(folder)


def test_a_model_that_no_single_gpu_holds_gets_as_many_as_it_needs(tmp_path: Path) -> None:
    file = tmp_path / "qlm.yaml"
    assert init("--model", "llama-70b", "--accelerator", "A100", file).exit_code == 0
    assert [each.gpus for each in load_config(file, {}, {}).instances] == [2]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--slo", "deadline_ms=1e400"), "--slo is 'deadline_ms=1e400'"),
        (("--slo", "deadline_ms=nan"), "--slo is 'deadline_ms=nan'"),
        (("--slo", "deadline_ms=1,deadline_ms=2"), "--slo is 'deadline_ms=1,deadline_ms=2'"),
        (("--slo", ""), "--slo is ''"),
        (("--slo", "{=1"), "the options: default_slo.{ is 1"),
        (
            ("--model", "mistral-7b", "--model", "mistral-7b"),
            "--model is 'mistral-7b'; expected each model once",
        ),
        (("--accelerator", ""), "--accelerator is ''"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(words: tuple[str, ...], named: str) -> None:
    done = init(*words)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert named in line


def test_it_takes_models_accelerators_and_an_objective(tmp_path: Path) -> None:
    file = tmp_path / "qlm.yaml"
    words = [
        "--model",
        f"support={tmp_path}",
        "--model",
        f"1:odd={tmp_path}",
        "--accelerator",
        "L40S",
        "--accelerator",
        "L40S",
    ]
    assert init(*words, "--slo", "ttft_ms=500,tokens_per_s=10", file).exit_code == 0
    config = load_config(file, {}, {})
    assert [(each.id, each.engine, each.path) for each in config.models] == [
        ("support", "vllm", tmp_path),
        ("1:odd", "vllm", tmp_path),
    ]
    assert [(each.id, each.models) for each in config.instances] == [
        ("l40s-0", ("support", "1:odd")),
        ("l40s-1", ("1:odd", "support")),
    ]
    assert config.default_slo.slo() == ReadingSlo(ttft_ms=500, tokens_per_s=10)
    assert "--force" in init(file).output
    assert init("--slo", "batch", "--force", file).exit_code == 0
    assert load_config(file, {}, {}).default_slo.slo() == BatchSlo()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slo", "deadline=5"], "did you mean deadline_ms?"),
        (["--slo", "fast"], "expected KEY=NUMBER"),
        (["--model", "m="], "expected NAME, or NAME=FOLDER"),
        (["--model", "a b"], "models.0.id is 'a b'"),
    ],
)
def test_what_makes_no_configuration_is_refused(words: list[str], said: str, tmp_path: Path) -> None:
    done = init(*words, tmp_path / "qlm.yaml")
    assert done.exit_code == 2
    assert said in done.output
    assert not list(tmp_path.iterdir())


def test_the_gpus_of_a_machine_become_instances_of_known_kinds() -> None:
    found = gpus_in(LISTING, KNOWN)
    assert [(each.accelerator, each.gpu) for each in found] == [
        ("A100", 0),
        ("H100", 1),
        ("A10", 2),
        ("RTX-4090", 3),
        ("A100", 4),
    ]
    config = parse_config(yaml.safe_load(starter_text([StarterModel("m", "/m")], found, {})), "it")
    assert [each.id for each in config.instances] == ["a100-0", "h100-0", "a10-0", "rtx-4090-0", "a100-1"]
    assert dict(config.instances[4].environment) == {"CUDA_VISIBLE_DEVICES": "4"}


@pytest.mark.parametrize("listing", ["", "NVIDIA-SMI has failed\n", "No devices were found\n"])
def test_a_machine_without_gpus_has_none(listing: str) -> None:
    assert gpus_in(listing, KNOWN) == []


def test_its_comments_show_true_defaults() -> None:
    text = starter_text([StarterModel("m")], [StarterInstance("A10")], {"deadline_ms": 60_000})
    config = parse_config(yaml.safe_load(text), "it")
    found = re.findall(r"^# (\w+): (\{.*?\}|[\w-]+) ", text, re.MULTILINE)
    assert len(found) >= 5
    for key, value in found:
        shown = parse_config(yaml.safe_load(text) | {key: yaml.safe_load(value)}, "it")
        assert getattr(shown, key) == getattr(config, key), key
    assert config.default_slo.slo() == DeadlineSlo(deadline_ms=60_000)


def test_a_file_that_names_neither_models_nor_instances_has_the_built_in_ones(tmp_path: Path) -> None:
    file = tmp_path / "qlm.yaml"
    file.write_text("limits: {queue_depth_max: 500}\n")
    config = load_config(file, {}, {})
    assert config.limits.queue_depth_max == 500
    assert [each.id for each in config.models] == ["mistral-7b", "llama-3-8b", "vicuna-13b"]
